// SPDX-License-Identifier: Apache-2.0
#include "model/blocks/gated_feed_forward.h"

#include "ops/glu.h"
#include "ops/rows.h"

namespace brim::model {

using tensor::TensorView;

namespace {

ops::Dropout gate_dropout(const Pass& p, int64_t l) {
  return p.layer_dropout(l, DropoutSite::gate, p.s.feed_forward_dropout);
}

TensorView gated(const Pass& p, int64_t l, const TensorView& wide) {
  const TensorView active =
      p.training != nullptr ? p.activations(wide.rows(), p.s.ffn) : p.between(wide.rows(), p.s.ffn);
  ops::glu(p.e.stream, {.x = wide, .y = active, .activation = p.s.activation});
  const ops::Dropout drop = gate_dropout(p, l);
  if (drop.on()) ops::dropout_rows(p.e.stream, {.x = active, .y = active, .dropout = drop});
  return active;
}

}  // namespace

void gated_feed_forward(const Pass& p, const FeedForwardParams& at, int64_t l, const Hidden& x,
                        const TensorView& residual, const TensorView& to, FeedForwardSaved* saved, bool keep_active) {
  const int64_t rows = x.x.rows(), F = p.s.ffn;
  const Param& up = p.param(at.up.w);
  const TensorView wide = saved != nullptr ? p.activations(rows, 2 * F) : p.between(rows, 2 * F);
  Operand input;
  if (p.trains_fp8(at.up.w)) {
    input = operand_of(p, x, at.up.w, {.columns = keep_active});
    multiply_fp8(p, input, at.up, wide);
  } else {
    apply_linear(p, input_of(x, up), at.up, wide);
  }
  const TensorView active = gated(p, l, wide);
  if (saved != nullptr) {
    saved->wide = wide;
    if (keep_active) saved->input_fp8 = input;
  }
  if (p.trains_fp8(at.down.w)) {
    const Operand copies = operand_of(p, {active}, at.down.w, {.columns = keep_active});
    if (keep_active) saved->active_fp8 = copies;
    multiply_fp8(p, copies, at.down, to, 0, -1, residual);
    return;
  }
  if (keep_active) saved->active = active;
  apply_linear(p, {active}, at.down, to, {.residual = residual});
}

TensorView gated_feed_forward_backward(const Pass& p, const FeedForwardParams& at, int64_t l,
                                       const FeedForwardSaved& saved, const std::function<TensorView()>& x,
                                       const TensorView& d) {
  LinearParams down = at.down;
  const Operand of_result = gradient_operand(p, down, d);
  Operand active = saved.active;
  if (saved.active_fp8.columns) active = saved.active_fp8;
  const bool kept = active.x || active.columns;
  TensorView d_active = saved.active;  // only read by the weights' gradient
  if (!saved.active || p.on_cpu()) d_active = p.activations(saved.wide.rows(), p.s.ffn);
  if (saved.active && p.on_cpu()) {
    linear_backward(p, active, down, of_result, d_active);
  } else {
    if (kept) linear_backward_weights(p, active, down, of_result);
    linear_backward_input(p, down, of_result, d_active);
  }
  const ops::Dropout drop = gate_dropout(p, l);
  const auto drop_out = [&] {
    if (drop.on()) ops::dropout_rows(p.e.stream, {.x = d_active, .y = d_active, .dropout = drop});
  };
  drop_out();
  const TensorView& d_wide = saved.wide;  // not read after this
  ops::GluGradArgs args{.x = saved.wide, .d_y = d_active, .d_x = d_wide, .activation = p.s.activation};
  if (!kept) args.y = d_active;  // recomputed in place of its gradient, together with the input's
  ops::glu_grad(p.e.stream, args);
  if (!kept) {
    drop_out();
    linear_backward_weights(p, d_active, down, of_result);
  }
  const TensorView d_x = p.activations(d.rows(), d.cols());
  linear_backward(p, saved.input_fp8.columns ? saved.input_fp8 : Operand(x()), at.up, d_wide, d_x);
  return d_x;
}

}  // namespace brim::model
