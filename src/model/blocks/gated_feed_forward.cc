// SPDX-License-Identifier: Apache-2.0
#include "model/blocks/gated_feed_forward.h"

#include "ops/glu.h"
#include "ops/rows.h"

namespace brim::model {

using tensor::TensorView;

namespace {

ops::Dropout gate_dropout(const Pass& p, int64_t l) {
  return p.layer_dropout(l, DropoutPlace::gate, p.s.feed_forward_dropout);
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

void gated_feed_forward(const Pass& p, const FeedForwardPlaces& at, int64_t l, const Hidden& x,
                        const TensorView& residual, const TensorView& to, FeedForwardSaved* saved, bool keep_active) {
  const int64_t rows = x.x.rows(), F = p.s.ffn;
  const Param& up = p.param(at.up.w);
  const TensorView wide = saved != nullptr ? p.activations(rows, 2 * F) : p.between(rows, 2 * F);
  apply_linear(p, input_of(x, up), up.matrix, p.param(at.up.b).plain, wide);
  const TensorView active = gated(p, l, wide);
  if (saved != nullptr) {
    saved->wide = wide;
    if (keep_active) saved->active = active;
  }
  apply_linear(p, {active}, p.param(at.down.w).matrix, p.param(at.down.b).plain, to, {.residual = residual});
}

TensorView gated_feed_forward_backward(const Pass& p, const FeedForwardPlaces& at, int64_t l,
                                       const FeedForwardSaved& saved, const std::function<TensorView()>& x,
                                       const TensorView& d) {
  TensorView d_active = saved.active;  // which only the weights' gradient reads
  if (!saved.active || p.on_cpu()) d_active = p.activations(saved.wide.rows(), p.s.ffn);
  if (saved.active && p.on_cpu()) {
    linear_backward(p, saved.active, at.down, d, d_active);
  } else {
    if (saved.active) linear_backward_weights(p, saved.active, at.down, d);
    linear_backward_input(p, at.down, d, d_active);
  }
  const ops::Dropout drop = gate_dropout(p, l);
  const auto drop_out = [&] {
    if (drop.on()) ops::dropout_rows(p.e.stream, {.x = d_active, .y = d_active, .dropout = drop});
  };
  drop_out();
  const TensorView& d_wide = saved.wide;  // nobody reads it after this
  ops::GluGradArgs args{.x = saved.wide, .d_y = d_active, .d_x = d_wide, .activation = p.s.activation};
  if (!saved.active) args.y = d_active;  // made again where its gradient was, together with the input's
  ops::glu_grad(p.e.stream, args);
  if (!saved.active) {
    drop_out();
    linear_backward_weights(p, d_active, at.down, d);
  }
  const TensorView d_x = p.activations(d.rows(), d.cols());
  linear_backward(p, x(), at.up, d_wide, d_x);
  return d_x;
}

}  // namespace brim::model
