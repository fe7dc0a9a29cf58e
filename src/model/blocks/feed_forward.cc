// SPDX-License-Identifier: Apache-2.0
#include "model/blocks/feed_forward.h"

#include "ops/rows.h"

namespace brim::model {

using ops::Activation;
using tensor::TensorView;

namespace {

TensorView activated(const Pass& p, const TensorView& wide) {
  const TensorView active = p.activations(wide.rows(), wide.cols());
  ops::activate(p.e.stream, {.x = wide, .y = active, .activation = p.s.activation});
  return active;
}

// Scoring: the product activates what it makes.
Input activated_product(const Pass& p, const FeedForwardPlaces& at, const Hidden& x) {
  const int64_t rows = x.x.rows(), F = p.s.ffn;
  const Activation activation = p.s.activation;
  if (!x.narrow) {
    const TensorView y = p.between(rows, F);
    apply_linear(p, {x.x}, at.up, y, activation);
    return {y};
  }
  const Param& up = p.param(at.up.w);
  const TensorView& bias = p.param(at.up.b).plain;
  const Fp8Scale& scale = p.param(at.down.w).input;
  const TensorView y = p.narrow(rows, F);
  if (activation == Activation::gelu || activation == Activation::gelu_tanh) {
    apply_linear(p, input_of(x, up), up.matrix, bias, y, {.activation = activation, .quantise = scale.quantise});
  } else {  // the library fuses no other activation with an fp8 result
    const TensorView h = p.activations(rows, F);
    apply_linear(p, input_of(x, up), up.matrix, bias, h, {activation});
    ops::convert(p.e.stream, {.x = h, .y = y, .scale = scale.quantise});
  }
  return {y, scale.dequantise};
}

}  // namespace

Hidden feed_forward(const Pass& p, const FeedForwardPlaces& at, const Hidden& x, FeedForwardSaved* saved,
                    bool keep_active) {
  if (saved == nullptr) return add_product(p, activated_product(p, at, x), at.down, x.x);
  saved->wide = p.activations(x.x.rows(), p.s.ffn);
  apply_linear(p, {x.x}, at.up, saved->wide);
  const TensorView active = activated(p, saved->wide);
  if (keep_active) saved->active = active;
  return add_product(p, {active}, at.down, x.x);
}

TensorView feed_forward_backward(const Pass& p, const FeedForwardPlaces& at, const FeedForwardSaved& saved,
                                 const std::function<TensorView()>& x, const NormGrad& d) {
  const TensorView active = saved.active ? saved.active : activated(p, saved.wide);
  const TensorView d_wide = p.activations(saved.wide.rows(), saved.wide.cols());
  linear_backward(p, active, {.w = at.down.w}, d.x, d_wide);
  // The bias's gradient is summed on the way, while d_wide is at hand.
  ops::ActivationGradArgs args{.x = slope_reads_output(p.s.activation) ? active : saved.wide};
  args.d_y = args.d_x = d_wide;
  args.d_bias = p.param(at.up.b).grad;
  args.scratch = p.e.memory.scratch(ops::activate_grad_scratch_bytes(p.e.stream, d_wide.rows(), d_wide.cols()));
  args.activation = p.s.activation;
  ops::activate_grad(p.e.stream, args);
  linear_backward(p, x(), {.w = at.up.w}, d_wide, d.residual, ops::GradWrite::accumulate);
  return d.residual;
}

}  // namespace brim::model
