// SPDX-License-Identifier: Apache-2.0
#include "model/blocks/convolution.h"

#include "ops/rows.h"
#include "ops/unfold.h"

namespace brim::model {

using tensor::TensorView;

namespace {

ops::Dropout convolution_dropout(const Pass& p) { return p.layer_dropout(0, DropoutSite::convolution); }

}  // namespace

Hidden convolve(const Pass& p, const ConvolutionParams& at, const TensorView& x, const TensorView& y,
                const NormResult& result, ConvolutionSaved* saved) {
  const int64_t T = p.batch.T, H = p.s.hidden;
  const ops::Activation activation = p.s.convolution_activation;
  const TensorView unfolded = p.activations(T, H * p.s.convolution), made = p.activations(T, H);
  ops::unfold(p.e.stream, {.x = x, .positions = p.batch.positions, .y = unfolded, .width = p.s.convolution});
  if (saved == nullptr) {
    apply_linear(p, {unfolded}, at.product, made, {activation});
    return norm(p, at.norm, {y, made}, result, {}, nullptr);
  }
  saved->unfolded = unfolded;
  saved->raw = p.activations(T, H);
  if (p.trains_fp8(at.product.w)) {
    saved->unfolded = operand_of(p, {unfolded}, at.product.w);
    multiply_fp8(p, saved->unfolded, at.product, saved->raw);
  } else {
    apply_linear(p, {unfolded}, at.product, saved->raw);
  }
  if (const ops::Dropout drop = convolution_dropout(p); drop.on())
    ops::dropout_rows(p.e.stream, {.x = saved->raw, .y = saved->raw, .dropout = drop});
  ops::activate(p.e.stream, {.x = saved->raw, .y = made, .activation = activation});
  return norm(p, at.norm, {y, made}, result, {}, &saved->norm);
}

ConvolutionGrad convolve_backward(const Pass& p, const ConvolutionParams& at, const ConvolutionSaved& saved,
                                  const TensorView& d_result) {
  const int64_t T = p.batch.T, H = p.s.hidden;
  ConvolutionGrad grad;
  grad.y = norm_backward(p, at.norm, saved.norm, {}, d_result).residual;
  const TensorView d_raw = p.activations(T, H);
  ops::ActivationGradArgs args{.x = saved.raw, .d_y = grad.y, .d_x = d_raw, .y = saved.raw};
  args.activation = p.s.convolution_activation;
  ops::activate_grad(p.e.stream, args);
  if (const ops::Dropout drop = convolution_dropout(p); drop.on())
    ops::dropout_rows(p.e.stream, {.x = d_raw, .y = d_raw, .dropout = drop});
  grad.unfolded = p.activations(T, H * p.s.convolution);
  linear_backward(p, saved.unfolded, at.product, d_raw, grad.unfolded);
  return grad;
}

void add_unfolded(const Pass& p, const ConvolutionGrad& d, const TensorView& d_x) {
  ops::unfold_grad(p.e.stream,
                   {.d_y = d.unfolded, .positions = p.batch.positions, .d_x = d_x, .width = p.s.convolution});
}

}  // namespace brim::model
