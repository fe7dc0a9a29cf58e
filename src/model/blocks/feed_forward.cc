// SPDX-License-Identifier: Apache-2.0
#include "model/blocks/feed_forward.h"

#include "ops/int8.h"
#include "ops/rows.h"

namespace brim::model {

using ops::Activation;
using tensor::TensorView;

namespace {

// In int8, the product with GELU writes codes with a scale per row and block of columns: a row's largest value is only
// known after all of its columns, and another pass would read two bytes and write one per value (docs/numerics.md).
Input activated_codes(const Pass& p, const FeedForwardParams& at, const Hidden& x) {
  const int64_t rows = x.x.rows(), F = p.s.ffn;
  const Param& up = p.param(at.up.w);
  const bool gelu = p.s.activation == Activation::gelu || p.s.activation == Activation::gelu_tanh;
  if (!gelu || !p.reads_codes(at.down.w)) {
    const TensorView y = p.between(rows, F);
    apply_linear(p, input_of(x, up), at.up, y, {p.s.activation});
    return {y};
  }
  const Input y{p.codes(rows, F), p.f32({ops::int8_blocks(F), rows})};
  apply_linear(p, input_of(x, up), up.matrix, p.param(at.up.b).plain, y.x,
               {.activation = p.s.activation, .quantise = y.dequantise});
  return y;
}

// Inference: the activation is fused with the product.
Input activated_product(const Pass& p, const FeedForwardParams& at, const Hidden& x) {
  const int64_t rows = x.x.rows(), F = p.s.ffn;
  const Activation activation = p.s.activation;
  if (!x.narrow) {
    const TensorView y = p.between(rows, F);
    apply_linear(p, {x.x}, at.up, y, {activation});
    return {y};
  }
  if (x.scales) return activated_codes(p, at, x);
  const Param& up = p.param(at.up.w);
  const TensorView& bias = p.param(at.up.b).plain;
  const Fp8Scale& scale = p.param(at.down.w).input;
  const TensorView y = p.narrow(rows, F);
  if (activation == Activation::gelu || activation == Activation::gelu_tanh) {
    apply_linear(p, input_of(x, up), up.matrix, bias, y, {.activation = activation, .quantise = scale.quantise});
  } else {  // cuBLASLt fuses no other activation with an fp8 result
    const TensorView h = p.activations(rows, F);
    apply_linear(p, input_of(x, up), up.matrix, bias, h, {activation});
    ops::convert(p.e.stream, {.x = h, .y = y, .scale = scale.quantise});
  }
  return {y, scale.dequantise};
}

}  // namespace

Hidden feed_forward(const Pass& p, const FeedForwardParams& at, const Hidden& x, FeedForwardSaved* saved,
                    bool keep_active) {
  if (saved == nullptr) return add_product(p, activated_product(p, at, x), at.down, x.x);
  saved->wide = p.activations(x.x.rows(), p.s.ffn);
  if (p.trains_fp8(at.up.w)) {
    const Operand input = operand_of(p, x, at.up.w, {.columns = keep_active});
    multiply_fp8(p, input, at.up, saved->wide);
    const Operand active =
        cast_operand(p, p.param(at.down.w).fp8.x, saved->wide, {.columns = keep_active}, p.s.activation);
    if (keep_active) {
      saved->input_fp8 = input;
      saved->active_fp8 = active;
    }
    return add_product_fp8(p, active, at.down, x.x);
  }
  apply_linear(p, {x.x}, at.up, saved->wide);
  const TensorView active = p.activations(saved->wide.rows(), saved->wide.cols());
  ops::activate(p.e.stream, {.x = saved->wide, .y = active, .activation = p.s.activation});
  if (keep_active) saved->active = active;
  return add_product(p, {active}, at.down, x.x);
}

namespace {

// The casts compute the activation and its slope, so that neither is stored in the compute type.
TensorView feed_forward_backward_fp8(const Pass& p, const FeedForwardParams& at, const FeedForwardSaved& saved,
                                     const std::function<TensorView()>& x, const NormGrad& d) {
  const TensorView& wide = saved.wide;
  const Operand active = saved.active_fp8.columns
                             ? saved.active_fp8
                             : cast_operand(p, p.param(at.down.w).fp8.x, wide, {.rows = false}, p.s.activation);
  linear_backward_weights(p, active, {.w = at.down.w}, d.x);
  const TensorView d_active = p.activations(wide.rows(), wide.cols());
  linear_backward_input(p, {.w = at.down.w}, d.x, d_active);
  const Operand d_wide = cast_slope(p, at.up, d_active, wide, p.s.activation);
  const Operand input = saved.input_fp8.columns ? saved.input_fp8 : Operand(x());
  linear_backward(p, input, {.w = at.up.w}, d_wide, d.residual, ops::GradWrite::accumulate);
  return d.residual;
}

}  // namespace

TensorView feed_forward_backward(const Pass& p, const FeedForwardParams& at, const FeedForwardSaved& saved,
                                 const std::function<TensorView()>& x, const NormGrad& d) {
  if (p.trains_fp8(at.up.w)) return feed_forward_backward_fp8(p, at, saved, x, d);
  const LinearParams down{.w = at.down.w};
  const bool from_output = slope_reads_output(p.s.activation);
  ops::ActivationGradArgs args{.x = saved.wide, .activation = p.s.activation};
  TensorView d_wide = saved.active;  // only read by the weights' gradient
  if (!saved.active || from_output || p.on_cpu()) d_wide = p.activations(saved.wide.rows(), saved.wide.cols());
  if (!saved.active) {  // recomputed in place of its input, together with the gradient
    args.y = saved.wide;
    linear_backward_input(p, down, d.x, d_wide);
  } else if (d_wide.data == saved.active.data) {
    linear_backward_weights(p, saved.active, down, d.x);
    linear_backward_input(p, down, d.x, d_wide);
  } else {
    if (from_output) args.x = saved.active;
    linear_backward(p, saved.active, down, d.x, d_wide);
  }
  // The bias's gradient is accumulated in the same pass over d_wide.
  args.d_y = args.d_x = d_wide;
  args.d_bias = p.param(at.up.b).grad;
  args.scratch = p.e.memory.scratch(ops::activate_grad_scratch_bytes(p.e.stream, d_wide.rows(), d_wide.cols()));
  ops::activate_grad(p.e.stream, args);
  if (!saved.active) linear_backward_weights(p, args.y, down, d.x);
  linear_backward(p, x(), {.w = at.up.w}, d_wide, d.residual, ops::GradWrite::accumulate);
  return d.residual;
}

}  // namespace brim::model
