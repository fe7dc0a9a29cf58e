// SPDX-License-Identifier: Apache-2.0
// Small row ops: gathering rows, pooling sequences, softmax of logits, element type conversion.
#pragma once
#include "ops/batch_view.h"
#include "ops/dropout.h"
#include "ops/op.h"

namespace brim::ops {

using tensor::TensorView;

// y[b] = x[starts[b]]: the first token of each sequence.
struct GatherRowsArgs {
  TensorView x;     // [T,H]
  TensorView rows;  // [B] i32 (starts of a batch without the last)
  TensorView y;     // [B,H], same type
  template <class F>
  void views(F&& f) const {
    for (const TensorView& v : {x, rows, y}) f(v);
  }
};
void gather_rows(device::Stream& stream, const GatherRowsArgs& args);
// d_x[rows[b]] += d_y[b]; rows are distinct.
struct ScatterRowsArgs {
  TensorView d_y, rows, d_x;
  template <class F>
  void views(F&& f) const {
    for (const TensorView& v : {d_y, rows, d_x}) f(v);
  }
};
void scatter_rows(device::Stream& stream, const ScatterRowsArgs& args);

// y[b] = mean of the sequence's rows, fp32.
struct PoolMeanArgs {
  TensorView x;  // [T,H]
  BatchView batch;
  TensorView y;  // [B,H] f32
  template <class F>
  void views(F&& f) const {
    for (const TensorView& v : {x, batch.starts, y}) f(v);
  }
};
void pool_mean(device::Stream& stream, const PoolMeanArgs& args);

// d_x[t] (+)= d_y of its sequence divided by the sequence's length.
struct PoolMeanGradArgs {
  TensorView d_y;  // [B,H]
  BatchView batch;
  TensorView d_x;  // [T,H], type of d_y
  GradWrite write = GradWrite::overwrite;
  template <class F>
  void views(F&& f) const {
    for (const TensorView& v : {d_y, batch.starts, d_x}) f(v);
  }
};
void pool_mean_grad(device::Stream& stream, const PoolMeanGradArgs& args);

// y = softmax(x) row-wise in fp32, or sigmoid element-wise (multi-label). A NaN or infinity in x gives a NaN: scores
// 0 and 1 would hide that the model overflowed.
struct SoftmaxArgs {
  TensorView x;  // [rows,K] f32 or activation type
  TensorView y;  // [rows,K] f32
  bool sigmoid = false;
  template <class F>
  void views(F&& f) const {
    for (const TensorView& v : {x, y}) f(v);
  }
};
void softmax(device::Stream& stream, const SoftmaxArgs& args);

// y = x in another element type (f32, f16, bf16), or times `scale` to f8e4m3.
struct ConvertArgs {
  TensorView x, y;
  TensorView scale;  // fp8: [1] f32 on the device; i8: [T] f32, written, for rows [T,C]; else empty
  template <class F>
  void views(F&& f) const {
    for (const TensorView& v : {x, y, scale}) f(v);
  }
};
void convert(device::Stream& stream, const ConvertArgs& args);

// y = activation(x), and its gradient d_x = d_y * activation'(x). Used if it is not fused into linear (training).
struct ActivationArgs {
  TensorView x, y;
  Activation activation = Activation::gelu;
  template <class F>
  void views(F&& f) const {
    for (const TensorView& v : {x, y}) f(v);
  }
};
void activate(device::Stream& stream, const ActivationArgs& args);
struct ActivationGradArgs {
  TensorView x;         // input of the activation, or its output (slope_reads_output)
  TensorView d_y, d_x;  // may alias
  TensorView y;         // if given, x is always the input, and the output is computed too; may be x
  TensorView d_bias;    // [H] f32: accumulates the column sums of d_x; may be empty; requires d_y to alias d_x
  TensorView scratch;   // u8[activate_grad_scratch_bytes] if d_bias is given
  Activation activation = Activation::gelu;
  template <class F>
  void views(F&& f) const {
    for (const TensorView& v : {x, d_y, d_x, y, d_bias, scratch}) f(v);
  }
};
void activate_grad(device::Stream& stream, const ActivationGradArgs& args);
int64_t activate_grad_scratch_bytes(const device::Stream& stream, int64_t rows, int64_t H);

// y (+)= factor * dropout(x), or its gradient (same mask and scale). May alias, except to accumulate. For heads and
// adapters only; elsewhere it is fused.
struct DropoutArgs {
  TensorView x, y;  // [rows,H]
  Dropout dropout;
  float factor = 1;
  GradWrite write = GradWrite::overwrite;
  template <class F>
  void views(F&& f) const {
    for (const TensorView& v : {x, y}) f(v);
  }
};
void dropout_rows(device::Stream& stream, const DropoutArgs& args);

}  // namespace brim::ops
