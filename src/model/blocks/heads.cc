// SPDX-License-Identifier: Apache-2.0
#include "model/blocks/heads.h"

#include "base/error.h"
#include "ops/loss.h"
#include "ops/rows.h"

namespace brim::model {

using ops::Dropout;
using tensor::TensorView;

namespace {

TensorView dropped(const Pass& p, const TensorView& x, const Dropout& drop) {
  if (!drop.on()) return x;
  const TensorView y = p.activations(x.rows(), x.cols());
  ops::dropout_rows(p.e.stream, {.x = x, .y = y, .dropout = drop});
  return y;
}
void drop_gradient(const Pass& p, const TensorView& d, const Dropout& drop) {
  if (drop.on()) ops::dropout_rows(p.e.stream, {.x = d, .y = d, .dropout = drop});
}

TensorView gather_first_tokens(const Pass& p, const TensorView& x) {
  const TensorView first = p.activations(p.batch.B, p.s.hidden);
  ops::gather_rows(p.e.stream, {.x = x, .rows = p.batch.starts.slice_rows(0, p.batch.B), .y = first});
  return first;
}

struct SequenceSaved {
  TensorView in, raw, dense, out;  // raw: before the activation, where its slope reads that
};

// [dropout], dense, activation, dropout, out.
TensorView sequence_logits(const Pass& p, const HeadPlaces& at, const TensorView& first, SequenceSaved& saved) {
  const int64_t B = p.batch.B, H = p.s.hidden;
  saved.in = at.dropout_first ? dropped(p, first, p.dropout(p.s.head_dropout, kHeadInSite)) : first;
  saved.dense = p.activations(B, H);
  if (p.training != nullptr && !slope_reads_output(at.activation)) {
    saved.raw = p.activations(B, H);
    apply_linear(p, {saved.in}, at.dense, saved.raw);
    ops::activate(p.e.stream, {.x = saved.raw, .y = saved.dense, .activation = at.activation});
  } else {
    apply_linear(p, {saved.in}, at.dense, saved.dense, at.activation);
  }
  saved.out = dropped(p, saved.dense, p.dropout(p.s.head_dropout, kHeadOutSite));
  const TensorView logits = p.f32({B, p.s.sequence_classes});
  apply_linear(p, {saved.out}, at.sequence, logits);
  return logits;
}

TensorView sequence_backward(const Pass& p, const HeadPlaces& at, const SequenceSaved& saved,
                             const TensorView& d_logits) {
  const TensorView d_out = p.activations(p.batch.B, p.s.hidden);
  linear_backward(p, saved.out, at.sequence, d_logits, d_out);
  drop_gradient(p, d_out, p.dropout(p.s.head_dropout, kHeadOutSite));
  ops::activate_grad(
      p.e.stream, {.x = saved.raw ? saved.raw : saved.dense, .d_y = d_out, .d_x = d_out, .activation = at.activation});
  const TensorView d_first = p.activations(p.batch.B, p.s.hidden);
  linear_backward(p, saved.in, at.dense, d_out, d_first);
  if (at.dropout_first) drop_gradient(p, d_first, p.dropout(p.s.head_dropout, kHeadInSite));
  return d_first;
}

TensorView token_logits(const Pass& p, const HeadPlaces& at, const TensorView& x, TensorView& in) {
  in = dropped(p, x, p.dropout(p.s.head_dropout, kTokenHeadSite));
  const TensorView logits = p.f32({p.batch.T, p.s.token_classes});
  apply_linear(p, {in}, at.token, logits);
  return logits;
}

TensorView token_backward(const Pass& p, const HeadPlaces& at, const TensorView& in, const TensorView& d_logits) {
  const TensorView d_x = p.activations(p.batch.T, p.s.hidden);
  linear_backward(p, in, at.token, d_logits, d_x);
  drop_gradient(p, d_x, p.dropout(p.s.head_dropout, kTokenHeadSite));
  return d_x;
}

TensorView loss_gradient(const Pass& p, const LossSettings& settings, const TensorView& logits,
                         const TensorView& target, const TrainTargets& targets, const TensorView& loss, bool sequence) {
  ops::CrossEntropyArgs args;
  args.logits = logits;
  args.targets = target;
  if (sequence) {
    args.class_weights = targets.class_weights;
    args.teacher = targets.teacher_sequence;
    args.multi_label = p.s.multi_label;
  }
  args.loss = loss;
  args.d_logits = p.activations(logits.rows(), logits.cols());
  args.scale =
      sequence ? settings.sequence_scale * settings.sequence_weight : settings.token_scale * settings.token_weight;
  args.label_smoothing = settings.label_smoothing;
  if (args.teacher) {
    args.hard_weight = settings.hard_weight;
    args.soft_weight = settings.soft_weight;
    args.temperature = settings.temperature;
  }
  args.scratch = p.e.memory.scratch(ops::cross_entropy_scratch_bytes(p.e.stream, logits.rows(), p.e.threads));
  cross_entropy(p.e.stream, args);
  return args.d_logits;
}

}  // namespace

TensorView finish(const Pass& p, const HeadPlaces& at, const TensorView& x, bool first_tokens, Output output) {
  TensorView result;
  switch (output) {
    case Output::hidden:
      result = x;
      if (x.dtype == tensor::DType::f32) break;
      result = p.f32({p.batch.T, p.s.hidden});
      ops::convert(p.e.stream, {.x = x, .y = result});
      break;
    case Output::token_logits:
    case Output::token_scores: {
      TensorView in;
      result = token_logits(p, at, x, in);
      break;
    }
    case Output::mean_hidden:
      result = p.f32({p.batch.B, p.s.hidden});
      ops::pool_mean(p.e.stream, {.x = x, .batch = p.batch, .y = result});
      break;
    case Output::cls_hidden: {
      const TensorView first = first_tokens ? x : gather_first_tokens(p, x);
      result = p.f32({p.batch.B, p.s.hidden});
      ops::convert(p.e.stream, {.x = first, .y = result});
      break;
    }
    default: {
      SequenceSaved saved;
      result = sequence_logits(p, at, first_tokens ? x : gather_first_tokens(p, x), saved);
    }
  }
  if (output == Output::token_scores || (output == Output::sequence_scores && !p.s.raw_scores)) {
    const bool apart = p.s.multi_label || p.s.sequence_classes == 1;  // each class by itself
    ops::softmax(p.e.stream, {.x = result, .y = result, .sigmoid = apart && output == Output::sequence_scores});
  }
  p.e.memory.keep(result);
  return result;
}

TensorView finish_training(const Pass& p, const HeadPlaces& at, const TensorView& x, bool first_tokens,
                           const LossSettings& loss, const TrainTargets& targets, TrainResult& result) {
  result.loss = p.f32({2});
  p.e.stream.fill_zero(result.loss.data, 8);
  TensorView d_x;
  if (p.s.token_classes > 0) {
    TensorView in;
    result.token_logits = token_logits(p, at, x, in);
    d_x = token_backward(
        p, at, in,
        loss_gradient(p, loss, result.token_logits, targets.token, targets, result.loss.slice_rows(1, 2), false));
  }
  if (p.s.sequence_classes == 0) return d_x;
  SequenceSaved saved;
  result.sequence_logits = sequence_logits(p, at, first_tokens ? x : gather_first_tokens(p, x), saved);
  const TensorView d_first = sequence_backward(
      p, at, saved,
      loss_gradient(p, loss, result.sequence_logits, targets.sequence, targets, result.loss.slice_rows(0, 1), true));
  if (first_tokens) return d_first;
  BRIM_CHECK(static_cast<bool>(d_x), "a sequence head without first tokens needs a token head beside it");
  ops::scatter_rows(p.e.stream, {.d_y = d_first, .rows = p.batch.starts.slice_rows(0, p.batch.B), .d_x = d_x});
  return d_x;
}

}  // namespace brim::model
