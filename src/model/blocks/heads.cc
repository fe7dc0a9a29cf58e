// SPDX-License-Identifier: Apache-2.0
#include "model/blocks/heads.h"

#include "base/error.h"
#include "model/blocks/attention.h"
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

// Input of the sequence head: the first token, or the mean of all tokens.
TensorView pooled(const Pass& p, const TensorView& x, bool first_tokens) {
  if (first_tokens) return x;
  if (!p.s.mean_pooling) return gather_first_tokens(p, x);
  const TensorView mean = p.f32({p.batch.B, p.s.hidden});
  ops::pool_mean(p.e.stream, {.x = x, .batch = p.batch, .y = mean});
  if (p.e.activation == tensor::DType::f32) return mean;
  const TensorView y = p.activations(p.batch.B, p.s.hidden);
  ops::convert(p.e.stream, {.x = mean, .y = y});
  return y;
}

struct HeadSaved {
  TensorView in, raw, dense, out;  // raw: before the activation, if its slope needs that
  NormSaved norm;
};

// dense, activation, [norm]
TensorView head_dense(const Pass& p, const HeadParams& at, const HeadDense& dense, HeadSaved& saved) {
  const int64_t rows = saved.in.rows(), H = p.s.hidden;
  saved.dense = p.activations(rows, H);
  if (p.training != nullptr && !slope_reads_output(at.activation)) {
    saved.raw = p.activations(rows, H);
    apply_linear(p, {saved.in}, dense.at, saved.raw);
    ops::activate(p.e.stream, {.x = saved.raw, .y = saved.dense, .activation = at.activation});
  } else {
    apply_linear(p, {saved.in}, dense.at, saved.dense, {at.activation});
  }
  if (dense.norm.gamma < 0) return saved.dense;
  return norm(p, dense.norm, {saved.dense}, {}, {}, p.training != nullptr ? &saved.norm : nullptr).x;
}

// `d`: gradient of head_dense's result, may be overwritten. Returns the gradient of its input.
TensorView head_dense_backward(const Pass& p, const HeadParams& at, const HeadDense& dense, const HeadSaved& saved,
                               TensorView d) {
  if (dense.norm.gamma >= 0) d = norm_backward(p, dense.norm, saved.norm, {}, d).residual;
  ops::activate_grad(p.e.stream,
                     {.x = saved.raw ? saved.raw : saved.dense, .d_y = d, .d_x = d, .activation = at.activation});
  const TensorView d_in = p.activations(d.rows(), p.s.hidden);
  linear_backward(p, saved.in, dense.at, d, d_in);
  return d_in;
}

Dropout dropout_before_dense(const Pass& p, const HeadParams& at) {
  return p.dropout(at.dropout_first ? p.s.head_dropout : p.s.pooler_dropout, kHeadInSite);
}

// [dropout], dense, activation, [norm], dropout, out. Writes to `logits` if given.
TensorView sequence_logits(const Pass& p, const HeadParams& at, const TensorView& x, HeadSaved& saved,
                           TensorView logits = {}) {
  saved.in = dropped(p, x, dropout_before_dense(p, at));
  saved.out = dropped(p, head_dense(p, at, at.dense, saved), p.dropout(p.s.head_dropout, kHeadOutSite));
  if (!logits) logits = p.f32({p.batch.B, p.s.sequence_classes});
  apply_linear(p, {saved.out}, at.sequence, logits);
  return logits;
}

// The logits of a head, which each adapter has of its own. `head` computes those of some rows.
template <class Head>
TensorView logits_of(const Pass& p, const HeadParams& at, const TensorView& x, int64_t classes, Head head) {
  HeadSaved saved;
  if (p.s.adapter_width == 0) return head(p, at, x, saved, {});
  const TensorView logits = p.f32({x.rows(), classes});
  p.for_each_adapter(x, [&](const Params& params, int64_t row, int64_t end_row) {
    head({p.e, p.s, params, p.batch}, at, x.slice_rows(row, end_row), saved, logits.slice_rows(row, end_row));
  });
  return logits;
}

TensorView sequence_backward(const Pass& p, const HeadParams& at, const HeadSaved& saved, const TensorView& d_logits) {
  const TensorView d_out = p.activations(p.batch.B, p.s.hidden);
  linear_backward(p, saved.out, at.sequence, d_logits, d_out);
  drop_gradient(p, d_out, p.dropout(p.s.head_dropout, kHeadOutSite));
  const TensorView d_in = head_dense_backward(p, at, at.dense, saved, d_out);
  drop_gradient(p, d_in, dropout_before_dense(p, at));
  return d_in;
}

// [dense, activation, norm], dropout, out.
TensorView token_logits(const Pass& p, const HeadParams& at, const TensorView& x, HeadSaved& saved,
                        TensorView logits = {}) {
  saved.in = x;
  const TensorView made = at.token_dense.at.w >= 0 ? head_dense(p, at, at.token_dense, saved) : x;
  saved.out = dropped(p, made, p.dropout(p.s.head_dropout, kTokenHeadSite));
  if (!logits) logits = p.f32({p.batch.T, p.s.token_classes});
  apply_linear(p, {saved.out}, at.token, logits);
  return logits;
}

TensorView token_backward(const Pass& p, const HeadParams& at, const HeadSaved& saved, const TensorView& d_logits) {
  const TensorView d_out = p.activations(p.batch.T, p.s.hidden);
  linear_backward(p, saved.out, at.token, d_logits, d_out);
  drop_gradient(p, d_out, p.dropout(p.s.head_dropout, kTokenHeadSite));
  return at.token_dense.at.w >= 0 ? head_dense_backward(p, at, at.token_dense, saved, d_out) : d_out;
}

TensorView loss_gradient(const Pass& p, const LossSettings& settings, const TensorView& logits,
                         const TensorView& target, const TrainTargets& targets, const TensorView& loss, bool sequence) {
  if (sequence && p.s.regression) {
    const TensorView d_logits = p.activations(logits.rows(), logits.cols());
    ops::SquaredErrorArgs args{.logits = logits, .targets = target, .loss = loss, .d_logits = d_logits};
    args.scale = settings.sequence_scale * settings.sequence_weight;
    args.scratch = p.e.memory.scratch(ops::cross_entropy_scratch_bytes(p.e.stream, logits.rows(), p.e.threads));
    squared_error(p.e.stream, args);
    return d_logits;
  }
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

TensorView finish(const Pass& p, const HeadParams& at, const TensorView& x, bool first_tokens, Output output) {
  TensorView result;
  switch (output) {
    case Output::hidden:
      result = x;
      if (x.dtype == tensor::DType::f32) break;
      result = p.f32({p.batch.T, p.s.hidden});
      ops::convert(p.e.stream, {.x = x, .y = result});
      break;
    case Output::word_scores:
      result = x;
      break;
    case Output::token_logits:
    case Output::token_scores:
      result = logits_of(p, at, x, p.s.token_classes, token_logits);
      break;
    case Output::token_scores_and_logits: {
      // The sequence head runs on every token (about 1 % of the pass), so that the results of a window stay in its
      // rows.
      BRIM_CHECK(!p.s.mean_pooling, "token logits are not supported with mean pooling");
      const int64_t tags = p.s.token_classes, all = tags + p.s.sequence_classes;
      result = p.f32({p.batch.T, all});
      HeadSaved token, sequence;
      token_logits(p, at, x, token, result.slice_cols(0, tags));
      sequence_logits(p, at, x, sequence, result.slice_cols(tags, all));
      const TensorView scores = result.slice_cols(0, tags);
      ops::softmax(p.e.stream, {.x = scores, .y = scores});
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
    default:
      result = logits_of(p, at, pooled(p, x, first_tokens), p.s.sequence_classes, sequence_logits);
  }
  if (output == Output::token_scores || (output == Output::sequence_scores && !p.s.raw_scores)) {
    const bool apart = p.s.multi_label || p.s.sequence_classes == 1;  // independent classes
    ops::softmax(p.e.stream, {.x = result, .y = result, .sigmoid = apart && output == Output::sequence_scores});
  }
  p.e.memory.keep(result);
  return result;
}

TensorView finish_training(const Pass& p, const HeadParams& at, const TensorView& x, bool first_tokens,
                           const LossSettings& loss, const TrainTargets& targets, TrainResult& result) {
  result.loss = p.f32({2});
  p.e.stream.fill_zero(result.loss.data, 8);
  TensorView d_x;
  if (p.s.token_classes > 0) {
    HeadSaved saved;
    result.token_logits = token_logits(p, at, x, saved);
    d_x = token_backward(
        p, at, saved,
        loss_gradient(p, loss, result.token_logits, targets.token, targets, result.loss.slice_rows(1, 2), false));
  }
  if (p.s.sequence_classes == 0) return d_x;
  HeadSaved saved;
  result.sequence_logits = sequence_logits(p, at, pooled(p, x, first_tokens), saved);
  const TensorView d_pooled = sequence_backward(
      p, at, saved,
      loss_gradient(p, loss, result.sequence_logits, targets.sequence, targets, result.loss.slice_rows(0, 1), true));
  if (first_tokens) return d_pooled;
  if (p.s.mean_pooling) {
    ops::PoolMeanGradArgs args{.d_y = d_pooled, .batch = p.batch, .d_x = d_x};
    if (d_x)
      args.write = ops::GradWrite::accumulate;
    else
      args.d_x = p.activations(p.batch.T, p.s.hidden);
    ops::pool_mean_grad(p.e.stream, args);
    return args.d_x;
  }
  BRIM_CHECK(static_cast<bool>(d_x), "a sequence head without first tokens requires a token head");
  ops::scatter_rows(p.e.stream, {.d_y = d_pooled, .rows = p.batch.starts.slice_rows(0, p.batch.B), .d_x = d_x});
  return d_x;
}

}  // namespace brim::model
