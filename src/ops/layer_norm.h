// SPDX-License-Identifier: Apache-2.0
// layer_norm: y = LN(dropout(x) + residual) * gamma + beta over rows of length H, with two-pass statistics in fp32.
#pragma once
#include "ops/dropout.h"
#include "ops/fp8_copy.h"
#include "ops/op.h"

namespace brim::ops {

using tensor::TensorView;

struct LayerNormArgs {
  TensorView x;            // [T,H]
  TensorView residual;     // [T,H] or empty
  TensorView gamma, beta;  // [H] f32 on the CPU, activation type on CUDA; beta may be empty
  TensorView y;            // [T,H]; may alias x or residual in inference
  TensorView sum;          // [T,H]: dropout(x) + residual, if needed later; else empty; may alias x
  TensorView mean, rstd;   // [T] f32, written in training
  TensorView y_fp8;        // [T,H] f8e4m3 copy of y * fp8_scale for the next GEMM, or i8 codes of y; else empty
  TensorView fp8_scale;    // [1] f32 on the device; i8: [T] f32, written
  Fp8Copy train_fp8;       // copies of y for training matmuls
  float eps = 1e-12f;
  Dropout dropout;

  template <class F>
  void views(F&& f) const {
    for (const TensorView& v : {x, residual, gamma, beta, y, sum, mean, rstd, y_fp8, fp8_scale, train_fp8.rows,
                                train_fp8.columns, train_fp8.scale, train_fp8.amax})
      f(v);
  }
};
void layer_norm(device::Stream& stream, const LayerNormArgs& args);
Work layer_norm_work(const LayerNormArgs& args);

// The gradient of a norm recovers x̂ from y = x̂ gamma + beta as x̂ = (y - beta) * inverse_gain. If the gain is so
// small relative to the offset that the rounded y has little information about x̂, the column counts as 0 and its gain
// gets no gradient.
constexpr float kLeastGain = 0x1p-13f, kLeastGainOfOffset = 0x1p-8f;

struct LayerNormGradArgs {
  TensorView sum, mean;    // [T,H], [T] f32 from the forward pass; or empty, using y:
  TensorView y, beta;      // [T,H], [H]: output of the forward pass, inverted; beta may be empty
  TensorView rstd, gamma;  // [T] f32, [H]
  TensorView d_y;          // [T,H]
  TensorView d_sum;        // [T,H]: gradient of the residual path; may alias d_y
  // [T,H]: gradient of x (after dropout); empty without dropout (d_sum is used), or if only its copies are needed
  // (layer_norm_grad_stores_d_x).
  TensorView d_x;
  TensorView d_gamma, d_beta;  // [H] f32, accumulated; d_beta may be empty
  // [H] f32, accumulated: column sums of the stored gradient of x, which are the gradient of a bias added to x; may be
  // empty.
  TensorView d_bias;
  TensorView scratch;  // u8[layer_norm_grad_scratch_bytes]: partial sums, added in a fixed order
  Fp8Copy train_fp8;   // copies of the gradient of x (d_x, or d_sum if there is none) for the products that follow
  GradWrite d_sum_write = GradWrite::overwrite;
  Dropout dropout;

  template <class F>
  void views(F&& f) const {
    for (const TensorView& v : {sum, mean, y, beta, rstd, gamma, d_y, d_sum, d_x, d_gamma, d_beta, d_bias, scratch,
                                train_fp8.rows, train_fp8.columns, train_fp8.scale, train_fp8.amax})
      f(v);
  }
};
void layer_norm_grad(device::Stream& stream, const LayerNormGradArgs& args);
// Whether copies of the gradient of x require storing it, if dropout makes it differ from d_sum.
bool layer_norm_grad_stores_d_x(const device::Stream& stream, tensor::DType type, int64_t H);
int64_t layer_norm_grad_scratch_bytes(const device::Stream& stream, int64_t T, int64_t H, int threads);

}  // namespace brim::ops
