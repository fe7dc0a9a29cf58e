// SPDX-License-Identifier: Apache-2.0
#include "model/training_pass.h"

#include "base/error.h"
#include "ops/attention.h"
#include "ops/embedding.h"
#include "ops/layer_norm.h"
#include "ops/linear.h"
#include "ops/loss.h"
#include "ops/rows.h"

namespace brim::model {

using ops::Activation;
using ops::Dropout;
using ops::GradWrite;
using tensor::TensorView;

namespace {

using P = ParamIndex;

// Places where dropout strikes; the site number makes each one's randomness its own.
enum DropoutPlace : uint32_t { kProbabilities, kAttentionOut, kFeedForwardOut, kPlaces = 8 };
constexpr uint32_t kEmbeddingSite = 1u << 20, kHeadInSite = kEmbeddingSite + 1, kHeadOutSite = kEmbeddingSite + 2,
                   kTokenHeadSite = kEmbeddingSite + 3;

struct NormSaved {
  TensorView sum;         // [rows,H] before the norm
  TensorView mean, rstd;  // [rows] f32
};

// What one layer's backward pass reads.
struct LayerSaved {
  TensorView x;             // [T,H] the layer's input
  TensorView qkv;           // [T,3H]; last layer on first tokens: kv [T,2H]
  TensorView q, first;      // last layer on first tokens: [B,H] queries and the input rows they came from
  TensorView context, lse;  // [rows,H], [rows,N]
  NormSaved norm1, norm2;
  TensorView attended;  // [rows,H] output of norm1; empty: recompute
  TensorView wide;      // [rows,F] feed-forward before its activation
  TensorView active;    // [rows,F] after it; empty: recompute
};

class Pass {
 public:
  Pass(Exec& e, const TrainPass& p, const ops::BatchView& batch) : e_(e), p_(p), s_(p.shape), batch_(batch) {
    first_tokens_ = s_.sequence_classes > 0 && s_.token_classes == 0;
  }

  TrainResult run(const TrainTargets& targets) {
    const TensorView x0 = embed();
    saved_.resize(static_cast<size_t>(s_.layers));
    TensorView x = x0;
    for (int64_t l = 0; l < s_.layers; ++l) {
      saved_[l].x = x;
      x = forward_layer(l, saved_[l], p_.recompute);
    }
    TrainResult result;
    TensorView d_x = heads(x, targets, result);
    for (int64_t l = s_.layers - 1; l >= 0; --l) {
      LayerSaved& saved = saved_[l];
      if (p_.recompute == Recompute::full) {
        LayerSaved again;
        again.x = saved.x;
        forward_layer(l, again, Recompute::none);
        saved = again;
      }
      d_x = backward_layer(l, saved, d_x);
    }
    embed_grad(d_x);
    e_.memory.keep(result.loss);
    if (result.sequence_logits) e_.memory.keep(result.sequence_logits);
    if (result.token_logits) e_.memory.keep(result.token_logits);
    return result;
  }

 private:
  // ---- small helpers ----
  TensorView alloc(int64_t rows, int64_t cols) {
    return e_.memory.allocate(memory::Tag::activations, e_.activation, {rows, cols});
  }
  TensorView alloc_f32(std::initializer_list<int64_t> dims) {
    return e_.memory.allocate(memory::Tag::activations, tensor::DType::f32, dims);
  }
  const TensorView& param(int64_t i) const { return p_.params[static_cast<size_t>(i)].plain; }
  const TensorView& grad(int64_t i) const { return p_.params[static_cast<size_t>(i)].grad; }
  const ops::LinearWeight& matrix(int64_t i) const { return p_.params[static_cast<size_t>(i)].matrix; }
  int64_t at(int64_t layer, int64_t what) const { return P::layer(layer) + what; }
  bool reads_first_tokens(int64_t layer) const { return first_tokens_ && layer == s_.layers - 1; }

  Dropout dropout(float probability, uint32_t site) const {
    Dropout d;
    if (p_.dropout.on) d.probability = probability;
    d.seed = p_.dropout.seed;
    d.site = site;
    return d;
  }
  Dropout layer_dropout(int64_t layer, DropoutPlace place) const {
    return dropout(place == kProbabilities ? s_.attention_dropout : s_.hidden_dropout,
                   static_cast<uint32_t>(layer) * kPlaces + place);
  }

  void apply(const TensorView& x, const ops::LinearWeight& w, const TensorView& bias, const TensorView& y,
             Activation activation = Activation::none) {
    ops::LinearArgs args{.x = x, .w = w, .bias = bias, .y = y};
    args.activation = activation;
    args.scratch = e_.memory.scratch(linear_scratch_bytes(e_.stream, x.rows(), w.N, w.K, w.precision, e_.threads));
    linear(e_.stream, args);
  }
  void apply(const TensorView& x, int64_t w, const TensorView& y, Activation activation = Activation::none) {
    apply(x, matrix(w), param(w + 1), y, activation);
  }

  // Rows [begin,end) of parameter w (a part of qkv), or all of it. d_x empty: not wanted.
  void apply_grad(const TensorView& x, int64_t w, int64_t begin, int64_t end, const TensorView& d_y,
                  const TensorView& d_x, GradWrite d_x_write) {
    ops::LinearGradArgs args;
    args.x = x;
    args.w_plain = param(w).slice_rows(begin, end);
    args.d_y = d_y;
    args.d_x = d_x;
    args.d_w = grad(w).slice_rows(begin, end);
    args.d_bias = grad(w + 1).slice_rows(begin, end);
    args.precision = matrix(w).precision;
    args.d_x_write = d_x_write;
    args.d_w_write = GradWrite::accumulate;
    args.scratch = e_.memory.scratch(
        linear_grad_scratch_bytes(e_.stream, x.rows(), end - begin, x.cols(), args.precision, e_.threads));
    linear_grad(e_.stream, args);
  }
  void apply_grad(const TensorView& x, int64_t w, const TensorView& d_y, const TensorView& d_x,
                  GradWrite d_x_write = GradWrite::overwrite) {
    apply_grad(x, w, 0, param(w).rows(), d_y, d_x, d_x_write);
  }

  // y = LN(dropout(x) + residual); x's memory becomes the kept sum.
  TensorView norm(const TensorView& x, const TensorView& residual, int64_t gamma, const Dropout& drop,
                  NormSaved& saved) {
    saved.sum = x;
    saved.mean = alloc_f32({x.rows()});
    saved.rstd = alloc_f32({x.rows()});
    const TensorView y = alloc(x.rows(), s_.hidden);
    ops::LayerNormArgs args{.x = x,
                            .residual = residual,
                            .gamma = param(gamma),
                            .beta = param(gamma + 1),
                            .y = y,
                            .sum = saved.sum,
                            .mean = saved.mean,
                            .rstd = saved.rstd};
    args.eps = s_.eps;
    args.dropout = drop;
    layer_norm(e_.stream, args);
    return y;
  }
  // The norm's output again, from the kept sum.
  TensorView norm_again(const NormSaved& saved, int64_t gamma) {
    const TensorView y = alloc(saved.sum.rows(), s_.hidden);
    ops::LayerNormArgs args{.x = saved.sum, .gamma = param(gamma), .beta = param(gamma + 1), .y = y};
    args.eps = s_.eps;
    layer_norm(e_.stream, args);
    return y;
  }
  struct NormGrad {
    TensorView residual, x;  // the same view when there is no dropout
  };
  NormGrad norm_grad(const NormSaved& saved, int64_t gamma, const Dropout& drop, const TensorView& d_y) {
    ops::LayerNormGradArgs args{
        .sum = saved.sum, .mean = saved.mean, .rstd = saved.rstd, .gamma = param(gamma), .d_y = d_y};
    args.d_sum = alloc(d_y.rows(), s_.hidden);
    if (drop.on()) args.d_x = alloc(d_y.rows(), s_.hidden);
    args.d_gamma = grad(gamma);
    args.d_beta = grad(gamma + 1);
    args.dropout = drop;
    args.scratch = e_.memory.scratch(ops::layer_norm_grad_scratch_bytes(e_.stream, d_y.rows(), s_.hidden, e_.threads));
    layer_norm_grad(e_.stream, args);
    return {args.d_sum, drop.on() ? args.d_x : args.d_sum};
  }

  // ---- embeddings ----
  TensorView embed() {
    const TensorView x = alloc(batch_.T, s_.hidden);
    embed_saved_.sum = alloc(batch_.T, s_.hidden);
    embed_saved_.mean = alloc_f32({batch_.T});
    embed_saved_.rstd = alloc_f32({batch_.T});
    ops::EmbeddingArgs args{.batch = batch_,
                            .word = param(P::word),
                            .position = param(P::position),
                            .gamma = param(P::embed_gamma),
                            .beta = param(P::embed_beta),
                            .y = x,
                            .sum = embed_saved_.sum,
                            .mean = embed_saved_.mean,
                            .rstd = embed_saved_.rstd};
    if (s_.types > 0) args.type = param(P::type);
    args.eps = s_.eps;
    args.dropout = dropout(s_.hidden_dropout, kEmbeddingSite);
    embedding(e_.stream, args);
    return x;
  }

  void embed_grad(TensorView d_x) {
    const Dropout drop = dropout(s_.hidden_dropout, kEmbeddingSite);
    if (drop.on()) ops::dropout_rows(e_.stream, {.x = d_x, .y = d_x, .dropout = drop});  // it came after the norm
    const NormGrad d = norm_grad(embed_saved_, P::embed_gamma, Dropout(), d_x);
    ops::EmbeddingGradArgs args{.batch = batch_,
                                .d_sum = d.residual,
                                .sorted = p_.sorted,
                                .sorted_positions = p_.sorted_positions,
                                .d_word = grad(P::word),
                                .d_position = grad(P::position)};
    if (s_.types > 0) args.d_type = grad(P::type);
    args.padding_id = s_.padding_id;
    if (s_.family == hub::Family::roberta) args.position_padding_id = s_.padding_id;
    args.scratch = e_.memory.scratch(ops::embedding_grad_scratch_bytes(e_.stream, batch_.T, s_.hidden, e_.threads));
    embedding_grad(e_.stream, args);
  }

  // ---- one layer ----
  // Attention's inputs and outputs by part, whichever way the layer runs.
  struct Heads {
    TensorView q, k, v;
  };
  Heads heads_of(const LayerSaved& saved, bool first) const {
    const int64_t H = s_.hidden;
    if (first) return {saved.q, saved.qkv.slice_cols(0, H), saved.qkv.slice_cols(H, 2 * H)};
    return {saved.qkv.slice_cols(0, H), saved.qkv.slice_cols(H, 2 * H), saved.qkv.slice_cols(2 * H, 3 * H)};
  }

  TensorView forward_layer(int64_t l, LayerSaved& saved, Recompute level) {
    const int64_t H = s_.hidden;
    const bool first = reads_first_tokens(l);
    const int64_t rows = first ? batch_.B : batch_.T;
    const TensorView x = saved.x;
    const Param& qkv = p_.params[static_cast<size_t>(at(l, P::qkv_w))];
    const TensorView bias = param(at(l, P::qkv_b));
    TensorView residual = x;
    if (first) {
      // A classifier reads first tokens only: keys and values for all, the rest of the layer for B rows.
      saved.first = alloc(batch_.B, H);
      ops::gather_rows(e_.stream, {.x = x, .rows = batch_.starts.slice_rows(0, batch_.B), .y = saved.first});
      residual = saved.first;
      saved.q = alloc(batch_.B, H);
      apply(saved.first, qkv.first, bias.slice_rows(0, H), saved.q);
      saved.qkv = alloc(batch_.T, 2 * H);
      apply(x, qkv.rest, bias.slice_rows(H, 3 * H), saved.qkv);
    } else {
      saved.qkv = alloc(batch_.T, 3 * H);
      apply(x, qkv.matrix, bias, saved.qkv);
    }
    saved.context = alloc(rows, H);
    saved.lse = alloc_f32({rows, s_.heads});
    const Heads parts = heads_of(saved, first);
    ops::AttentionArgs args{.q = parts.q, .k = parts.k, .v = parts.v, .out = saved.context, .batch = batch_};
    args.first_query_only = first;
    args.heads = s_.heads;
    args.lse = saved.lse;
    args.precision = e_.precision;
    args.dropout = layer_dropout(l, kProbabilities);
    args.scratch = e_.memory.scratch(
        attention_scratch_bytes(e_.stream, batch_.T, batch_.S, H, s_.heads, e_.precision, e_.threads));
    attention(e_.stream, args);

    const TensorView projected = alloc(rows, H);
    apply(saved.context, at(l, P::out_w), projected);
    const TensorView attended =
        norm(projected, residual, at(l, P::norm1_gamma), layer_dropout(l, kAttentionOut), saved.norm1);
    saved.wide = alloc(rows, s_.ffn);
    apply(attended, at(l, P::ffn1_w), saved.wide);
    const TensorView active = alloc(rows, s_.ffn);
    ops::activate(e_.stream, {.x = saved.wide, .y = active, .activation = s_.activation});
    const TensorView narrowed = alloc(rows, H);
    apply(active, at(l, P::ffn2_w), narrowed);
    const TensorView y =
        norm(narrowed, attended, at(l, P::norm2_gamma), layer_dropout(l, kFeedForwardOut), saved.norm2);
    if (level == Recompute::none) {
      saved.attended = attended;
      saved.active = active;
    }
    return y;
  }

  TensorView backward_layer(int64_t l, LayerSaved& saved, const TensorView& d_y) {
    const int64_t H = s_.hidden;
    const bool first = reads_first_tokens(l);
    const int64_t rows = first ? batch_.B : batch_.T;
    // Feed-forward half.
    const NormGrad d2 = norm_grad(saved.norm2, at(l, P::norm2_gamma), layer_dropout(l, kFeedForwardOut), d_y);
    TensorView active = saved.active;
    if (!active) {
      active = alloc(rows, s_.ffn);
      ops::activate(e_.stream, {.x = saved.wide, .y = active, .activation = s_.activation});
    }
    const TensorView d_wide = alloc(rows, s_.ffn);
    apply_grad(active, at(l, P::ffn2_w), d2.x, d_wide);
    ops::activate_grad(e_.stream, {.x = slope_reads_output(s_.activation) ? active : saved.wide,
                                   .d_y = d_wide,
                                   .d_x = d_wide,
                                   .activation = s_.activation});
    const TensorView attended = saved.attended ? saved.attended : norm_again(saved.norm1, at(l, P::norm1_gamma));
    const TensorView d_attended = d2.residual;
    apply_grad(attended, at(l, P::ffn1_w), d_wide, d_attended, GradWrite::accumulate);
    // Attention half.
    const NormGrad d1 = norm_grad(saved.norm1, at(l, P::norm1_gamma), layer_dropout(l, kAttentionOut), d_attended);
    const TensorView d_context = alloc(rows, H);
    apply_grad(saved.context, at(l, P::out_w), d1.x, d_context);
    const Heads parts = heads_of(saved, first);
    LayerSaved d;
    d.qkv = alloc(batch_.T, first ? 2 * H : 3 * H);
    if (first) d.q = alloc(batch_.B, H);
    const Heads d_parts = heads_of(d, first);
    ops::AttentionGradArgs args{.q = parts.q,
                                .k = parts.k,
                                .v = parts.v,
                                .out = saved.context,
                                .lse = saved.lse,
                                .d_out = d_context,
                                .d_q = d_parts.q,
                                .d_k = d_parts.k,
                                .d_v = d_parts.v,
                                .batch = batch_};
    args.first_query_only = first;
    args.heads = s_.heads;
    args.dropout = layer_dropout(l, kProbabilities);
    args.scratch =
        e_.memory.scratch(ops::attention_grad_scratch_bytes(e_.stream, batch_.T, batch_.S, H, s_.heads, e_.threads));
    attention_grad(e_.stream, args);
    if (!first) {
      apply_grad(saved.x, at(l, P::qkv_w), d.qkv, d1.residual, GradWrite::accumulate);
      return d1.residual;
    }
    const TensorView d_x = alloc(batch_.T, H);
    apply_grad(saved.x, at(l, P::qkv_w), H, 3 * H, d.qkv, d_x, GradWrite::overwrite);
    const TensorView d_first = d1.residual;
    apply_grad(saved.first, at(l, P::qkv_w), 0, H, d.q, d_first, GradWrite::accumulate);
    ops::scatter_rows(e_.stream, {.d_y = d_first, .rows = batch_.starts.slice_rows(0, batch_.B), .d_x = d_x});
    return d_x;
  }

  // ---- heads and losses: logits, loss, and the gradient of the last hidden states ----
  TensorView heads(const TensorView& x, const TrainTargets& targets, TrainResult& result) {
    result.loss = alloc_f32({2});
    e_.stream.fill_zero(result.loss.data, 8);
    TensorView d_x;
    if (s_.token_classes > 0) d_x = token_head(x, targets, result);
    if (s_.sequence_classes > 0) d_x = sequence_head(x, targets, result, d_x);  // adds to the token head's
    return d_x;
  }

  TensorView loss_grad(const TensorView& logits, const TensorView& target, const TrainTargets& targets,
                       const TensorView& loss, bool sequence) {
    ops::CrossEntropyArgs args;
    args.logits = logits;
    args.targets = target;
    if (sequence) {
      args.class_weights = targets.class_weights;
      args.teacher = targets.teacher_sequence;
      args.multi_label = s_.multi_label;
    }
    args.loss = loss;
    args.d_logits = alloc(logits.rows(), logits.cols());
    args.scale =
        (sequence ? p_.loss.sequence_scale * p_.loss.sequence_weight : p_.loss.token_scale * p_.loss.token_weight);
    args.label_smoothing = p_.loss.label_smoothing;
    if (args.teacher) {
      args.hard_weight = p_.loss.hard_weight;
      args.soft_weight = p_.loss.soft_weight;
      args.temperature = p_.loss.temperature;
    }
    args.scratch = e_.memory.scratch(ops::cross_entropy_scratch_bytes(e_.stream, logits.rows(), e_.threads));
    cross_entropy(e_.stream, args);
    return args.d_logits;
  }

  // BERT: dense tanh, dropout, out. RoBERTa: dropout, dense tanh, dropout, out. DistilBERT: dense relu, dropout, out.
  TensorView sequence_head(const TensorView& x, const TrainTargets& targets, TrainResult& result, TensorView d_x) {
    const HeadIndex head = head_index(s_);
    const int64_t H = s_.hidden, B = batch_.B;
    TensorView first = x;
    if (!first_tokens_) {
      first = alloc(B, H);
      ops::gather_rows(e_.stream, {.x = x, .rows = batch_.starts.slice_rows(0, B), .y = first});
    }
    const Dropout before = s_.family == hub::Family::roberta ? dropout(s_.head_dropout, kHeadInSite) : Dropout();
    const Dropout after = dropout(s_.head_dropout, kHeadOutSite);
    TensorView in = first;
    if (before.on()) {
      in = alloc(B, H);
      ops::dropout_rows(e_.stream, {.x = first, .y = in, .dropout = before});
    }
    const Activation activation = head_activation(s_.family);
    const TensorView dense = alloc(B, H);
    apply(in, head.dense_w, dense, activation);
    TensorView out = dense;
    if (after.on()) {
      out = alloc(B, H);
      ops::dropout_rows(e_.stream, {.x = dense, .y = out, .dropout = after});
    }
    result.sequence_logits = alloc_f32({B, s_.sequence_classes});
    apply(out, head.sequence_w, result.sequence_logits);
    const TensorView d_logits =
        loss_grad(result.sequence_logits, targets.sequence, targets, result.loss.slice_rows(0, 1), true);
    const TensorView d_out = alloc(B, H);
    apply_grad(out, head.sequence_w, d_logits, d_out);
    if (after.on()) ops::dropout_rows(e_.stream, {.x = d_out, .y = d_out, .dropout = after});
    ops::activate_grad(e_.stream, {.x = dense, .d_y = d_out, .d_x = d_out, .activation = activation});
    const TensorView d_first = alloc(B, H);
    apply_grad(in, head.dense_w, d_out, d_first);
    if (before.on()) ops::dropout_rows(e_.stream, {.x = d_first, .y = d_first, .dropout = before});
    if (first_tokens_) return d_first;  // else the token head has made d_x
    BRIM_CHECK(static_cast<bool>(d_x), "a sequence head without first tokens needs a token head beside it");
    ops::scatter_rows(e_.stream, {.d_y = d_first, .rows = batch_.starts.slice_rows(0, B), .d_x = d_x});
    return d_x;
  }

  TensorView token_head(const TensorView& x, const TrainTargets& targets, TrainResult& result) {
    const HeadIndex head = head_index(s_);
    const Dropout drop = dropout(s_.head_dropout, kTokenHeadSite);
    TensorView in = x;
    if (drop.on()) {
      in = alloc(batch_.T, s_.hidden);
      ops::dropout_rows(e_.stream, {.x = x, .y = in, .dropout = drop});
    }
    result.token_logits = alloc_f32({batch_.T, s_.token_classes});
    apply(in, head.token_w, result.token_logits);
    const TensorView d_logits =
        loss_grad(result.token_logits, targets.token, targets, result.loss.slice_rows(1, 2), false);
    const TensorView d_x = alloc(batch_.T, s_.hidden);
    apply_grad(in, head.token_w, d_logits, d_x);
    if (drop.on()) ops::dropout_rows(e_.stream, {.x = d_x, .y = d_x, .dropout = drop});
    return d_x;
  }

  Exec& e_;
  const TrainPass& p_;
  const ModelShape& s_;
  const ops::BatchView& batch_;
  bool first_tokens_;
  NormSaved embed_saved_;
  std::vector<LayerSaved> saved_;
};

}  // namespace

const char* recompute_name(Recompute level) {
  static const char* const names[] = {"none", "selective", "full"};
  return names[static_cast<int>(level)];
}

std::optional<Recompute> recompute_from_name(std::string_view name) {
  for (const auto level : {Recompute::none, Recompute::selective, Recompute::full})
    if (name == recompute_name(level)) return level;
  return std::nullopt;
}

TrainResult forward_backward(Exec& exec, const TrainPass& pass, const ops::BatchView& batch,
                             const TrainTargets& targets) {
  return Pass(exec, pass, batch).run(targets);
}

}  // namespace brim::model
