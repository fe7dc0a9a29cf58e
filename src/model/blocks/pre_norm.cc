// SPDX-License-Identifier: Apache-2.0
#include "model/blocks/pre_norm.h"

#include "model/blocks/gated_feed_forward.h"
#include "ops/rows.h"

namespace brim::model {

using tensor::TensorView;
using Bound = InputBound::Kind;

PreNormEncoder::PreNormEncoder(const ModelShape& shape) : Architecture(shape) {
  const ModelShape& s = shape_;
  embedding_.word = list_.table("model.embeddings.tok_embeddings.weight", s.vocab, s.hidden);
  list_.at(embedding_.word).int8 = true;
  embedding_.norm = list_.norm("model.embeddings.norm", s.hidden, s.norm_bias);
  list_.end_embeddings();
  for (int64_t l = 0; l < s.layers; ++l) {
    list_.begin_layer(l);
    layers_.push_back(list_layer(l, embedding_.norm));
  }
  list_.begin_layer(-1);
  last_norm_ = list_.norm("model.final_norm", s.hidden, s.norm_bias);
  // With both heads on one encoder, the token head needs distinct names.
  const bool both = s.sequence_classes > 0 && s.token_classes > 0;
  heads_.activation = s.head_activation;
  heads_.dense = list_dense("head", s.sequence_classes > 0);
  heads_.sequence = list_.head("classifier", s.sequence_classes, s.hidden, true);
  heads_.token_dense = list_dense(both ? "token_head" : "head", s.token_classes > 0);
  heads_.token = list_.head(both ? "token_classifier" : "classifier", s.token_classes, s.hidden, true);
}

HeadDense PreNormEncoder::list_dense(const std::string& name, bool there) {
  const int64_t H = there ? shape_.hidden : 0;
  return {list_.head(name + ".dense", H, shape_.hidden, false, shape_.head_bias),
          list_.head_norm(name + ".norm", H, shape_.norm_bias)};
}

PreNormEncoder::LayerParams PreNormEncoder::list_layer(int64_t l, NormParams before) {
  const ModelShape& s = shape_;
  const int64_t H = s.hidden;
  const auto name = [&](const char* part) { return "model.layers." + std::to_string(l) + "." + part; };
  LayerParams at;
  if (l > 0) before = at.norm1 = list_.norm(name("attn_norm"), H, s.norm_bias);
  at.attention.window = s.is_local(l) ? s.window : 0;
  at.attention.theta = s.is_local(l) ? s.local_rope_theta : s.rope_theta;
  at.attention.keeps_sum = true;
  at.attention.qkv =
      list_.linear({name("attn.Wqkv")}, 3 * H, H, {Bound::norm, before.gamma, before.beta}, s.attention_bias);
  if (l + 1 == s.layers && !s.mean_pooling) {  // a classifier only needs queries for first tokens
    ParamSpec& qkv = list_.at(at.attention.qkv.w);
    qkv.split = H;
    qkv.whole_scored = false;
    qkv.whole_trained = s.token_classes > 0;
  }
  at.attention.out = list_.linear(
      {name("attn.Wo")}, H, H,
      {Bound::product, before.gamma, before.beta, at.attention.qkv.w, at.attention.qkv.b, 2 * H}, s.attention_bias);
  at.norm2 = list_.norm(name("mlp_norm"), H, s.norm_bias);
  at.feed_forward.up =
      list_.linear({name("mlp.Wi")}, 2 * s.ffn, H, {Bound::norm, at.norm2.gamma, at.norm2.beta}, s.feed_forward_bias);
  // The bound of a product of two halves is far above typical values: in e4m3 most of them would get its smallest
  // codes.
  at.feed_forward.down = list_.linear({name("mlp.Wo")}, H, s.ffn, {}, s.feed_forward_bias);
  return at;
}

void PreNormEncoder::embed(const Pass& p, const Hidden& to, EmbeddingSaved* saved) const {
  model::embed(p, embedding_, to, wanted_by(p.params, 0), saved);
}

void PreNormEncoder::embed_backward(const Pass& p, const EmbeddingSaved& saved, const TensorView& d_x) const {
  model::embed_backward(p, embedding_, saved, d_x);
}

namespace {

ops::Dropout attention_out_dropout(const Pass& p, int64_t l) {
  return p.layer_dropout(l, DropoutSite::attention_out, p.s.attention_dropout);
}

}  // namespace

Hidden PreNormEncoder::layer(const Pass& p, int64_t l, const Hidden& x, bool first_tokens, const Hidden& to,
                             LayerTape* tape) const {
  const LayerParams& at = layer_at(l);
  const bool keep_cheap = tape != nullptr && tape->keep_cheap;
  Hidden normed = x;
  if (at.norm1.gamma >= 0) {
    normed = norm(p, at.norm1, {x.x}, {.reader = at.attention.qkv.w, .keeps_columns = keep_cheap}, {},
                  tape != nullptr ? &tape->norm1 : nullptr);
    if (keep_cheap) tape->normed = normed.x;
    if (tape != nullptr) tape->attention.keep_input = keep_cheap;
  }
  const Hidden attention =
      attend(p, at.attention, l, normed, x.x, first_tokens, tape != nullptr ? &tape->attention : nullptr);
  const Hidden attended =
      norm(p, at.norm2, attention, {.reader = at.feed_forward.up.w, .keep_sum = true, .keeps_columns = keep_cheap},
           attention_out_dropout(p, l), tape != nullptr ? &tape->norm2 : nullptr);
  if (keep_cheap) tape->attended = attended.x;
  const TensorView sum = attention.pending ? attention.pending : attention.x;
  const bool last = l + 1 == p.s.layers;
  TensorView y = last ? TensorView() : to.x;
  if (last && tape == nullptr) y = sum;  // last use of the sum
  if (!y) y = p.activations(sum.rows(), sum.cols());
  gated_feed_forward(p, at.feed_forward, l, attended, sum, y, tape != nullptr ? &tape->feed_forward : nullptr,
                     keep_cheap);
  if (!last) return {y};
  return norm(p, last_norm_, {y}, {to}, {}, tape != nullptr ? &tape->last_norm : nullptr);
}

TensorView PreNormEncoder::layer_backward(const Pass& p, int64_t l, bool first_tokens, const LayerTape& tape,
                                          const TensorView& d_y) const {
  const LayerParams& at = layer_at(l);
  const bool last = l + 1 == p.s.layers, normed = at.norm1.gamma >= 0;
  const TensorView d_sum = last ? norm_backward(p, last_norm_, tape.last_norm, {}, d_y).residual : d_y;
  const TensorView d_attended = gated_feed_forward_backward(
      p, at.feed_forward, l, tape.feed_forward,
      [&] { return tape.attended ? tape.attended : norm_again(p, at.norm2, tape.norm2); }, d_sum);
  const NormGrad attention =
      norm_backward(p, at.norm2, tape.norm2, attention_out_dropout(p, l), d_attended, d_sum, at.attention.out);
  const bool remade = normed && !tape.normed && !tape.attention.input.columns;
  const TensorView input = !normed ? tape.x : remade ? norm_again(p, at.norm1, tape.norm1) : tape.normed;
  const TensorView d_input =
      attend_backward(p, at.attention, l, input, first_tokens, tape.attention, attention, normed);
  if (!normed) return d_input;
  if (!first_tokens) return norm_backward(p, at.norm1, tape.norm1, {}, d_input, attention.residual).residual;
  const TensorView d_x = norm_backward(p, at.norm1, tape.norm1, {}, d_input).residual;
  ops::scatter_rows(p.e.stream,
                    {.d_y = attention.residual, .rows = p.batch.starts.slice_rows(0, p.batch.B), .d_x = d_x});
  return d_x;
}

}  // namespace brim::model
