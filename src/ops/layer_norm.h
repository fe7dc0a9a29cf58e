// SPDX-License-Identifier: Apache-2.0
// layer_norm: y = LN(dropout(x) + residual) * gamma + beta over rows of length H; statistics in fp32, two passes.
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
  TensorView y;            // [T,H]; may alias x or residual when not training
  TensorView sum;          // [T,H]: dropout(x) + residual, where somebody reads it again; else empty; may alias x
  TensorView mean, rstd;   // [T] f32, written when training
  TensorView y_fp8;        // [T,H] f8e4m3 copy of y * fp8_scale for the next GEMM; else empty
  TensorView fp8_scale;    // [1] f32 on the device
  Fp8Copy train_fp8;       // of y, for training's products
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

// How a norm's gradient undoes y = x̂ gamma + beta: x̂ = (y - beta) * inverse_gain. Where the gain is so small beside
// the offset that y as it was rounded says little of x̂, the column counts as 0 and its gain gets no gradient.
constexpr float kLeastGain = 0x1p-13f, kLeastGainOfOffset = 0x1p-8f;

struct LayerNormGradArgs {
  TensorView sum, mean;    // [T,H], [T] f32, as the forward pass left them; empty where it left y:
  TensorView y, beta;      // [T,H], [H]: what it gave, which is undone; beta may be empty
  TensorView rstd, gamma;  // [T] f32, [H]
  TensorView d_y;          // [T,H]
  TensorView d_sum;        // [T,H]: gradient of the residual path; may alias d_y
  TensorView d_x;          // [T,H]: gradient of x (dropout applied); empty when dropout is off (it is d_sum then), or
                           // where its copies are all that is wanted (layer_norm_grad_stores_d_x)
  TensorView d_gamma, d_beta;  // [H] f32, accumulated; d_beta may be empty
  TensorView d_bias;   // [H] f32, accumulated: sums of what is stored of x's gradient, which are the gradient of
                       // the bias that was added to x; may be empty
  TensorView scratch;  // u8[layer_norm_grad_scratch_bytes]: partial sums, added in a fixed order
  Fp8Copy train_fp8;   // of x's gradient (d_x, or d_sum where there is none), for the products behind it
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
// Whether copies of x's gradient need it stored, where dropout makes it another than d_sum.
bool layer_norm_grad_stores_d_x(const device::Stream& stream, tensor::DType type, int64_t H);
int64_t layer_norm_grad_scratch_bytes(const device::Stream& stream, int64_t T, int64_t H, int threads);

}  // namespace brim::ops
