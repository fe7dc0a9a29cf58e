// SPDX-License-Identifier: Apache-2.0
#include "model/blocks/post_norm.h"

#include <algorithm>

namespace brim::model {

using tensor::TensorView;
using Bound = InputBound::Kind;

PostNormEncoder::PostNormEncoder(const ModelShape& shape, const PostNormNames& n, const PostNormOptions& options)
    : Architecture(shape), drops_feed_forward_(options.feed_forward_dropout) {
  const ModelShape& s = shape_;
  const int64_t E = s.embedding_size();
  embedding_.word = list_.table(n.prefix + n.word, s.vocab, E);
  list_.at(embedding_.word).int8 = true;
  embedding_.position = list_.table(n.prefix + n.position, s.position_table ? s.positions : 0, E);
  embedding_.type = list_.table(n.prefix + n.type, s.types, E);
  embedding_.norm = list_.norm(n.prefix + n.norm, E);
  InputBound input{Bound::norm, embedding_.norm.gamma, embedding_.norm.beta};
  if (E != s.hidden || options.always_project) {
    embedding_.project = list_.linear({n.prefix + n.project}, s.hidden, E, {});
    input = {Bound::product, input.gamma, input.beta, embedding_.project.w, embedding_.project.b};
  }
  list_.end_embeddings();
  if (s.relative_buckets > 0) relative_ = list_.biases(n.prefix + n.relative, s.relative_buckets, s.heads);
  if (s.distances.span > 0) list_distances(n);
  if (s.layer_groups > 0) list_groups(n);
  for (int64_t l = static_cast<int64_t>(layers_.size()); l < s.layers; ++l) {
    list_.begin_layer(l);
    layers_.push_back(list_layer(n, l, l + 1 == s.layers, input));
    const NormParams& last = l == 0 && s.convolution > 0 ? convolution_.norm : layers_.back().norm2;
    input = {Bound::norm, last.gamma, last.beta};
  }
  list_.begin_layer(-1);
  // With both heads on one encoder, the token head needs a distinct name.
  const std::string token = s.sequence_classes > 0 && s.token_classes > 0 ? "token_classifier" : n.token;
  heads_.dense.at = list_.head(n.dense, s.sequence_classes > 0 ? s.hidden : 0, s.hidden, false);
  heads_.sequence = list_.head(n.sequence, s.sequence_classes, s.hidden, true);
  heads_.token = list_.head(token, s.token_classes, s.hidden, true);
  heads_.activation = options.head_activation;
  heads_.dropout_first = options.head_dropout_first;
}

void PostNormEncoder::list_distances(const PostNormNames& n) {
  const int64_t H = shape_.hidden, width = shape_.convolution;
  distances_.table = list_.table(n.prefix + n.distances, 2 * shape_.distances.span, H);
  if (shape_.distance_norm) distances_.norm = list_.norm(n.prefix + n.distance_norm, H);
  distances_.queries = shape_.distance_queries;
  distances_.keys = shape_.distance_keys;
  distances_.own = !shape_.shared_distances;
  if (width == 0) return;
  convolution_.product = list_.linear({n.prefix + n.convolution}, H, H * width, {});
  list_.at(convolution_.product.w).int8 = false;  // int8 files only have matrices
  list_.at(convolution_.product.w).inner = width;
  convolution_.norm = list_.norm(n.prefix + n.convolution_norm, H);
}

// Groups of adjacent layers, as even as possible. A group's input is either the embeddings or the result of several
// norms, so no single bound applies.
void PostNormEncoder::list_groups(const PostNormNames& n) {
  const ModelShape& s = shape_;
  std::vector<int64_t> group(static_cast<size_t>(s.layers));
  for (int64_t l = 0; l < s.layers; ++l)  // same rounding as transformers
    group[static_cast<size_t>(l)] = static_cast<int64_t>(
        static_cast<double>(l) / (static_cast<double>(s.layers) / static_cast<double>(s.layer_groups)));
  std::vector<LayerParams> groups;
  for (int64_t g = 0; g < s.layer_groups; ++g) {
    list_.begin_group(g);
    groups.push_back(list_layer(n, g, g == group.back(), {}));
  }
  list_.begin_group(-1);
  if (std::count(group.begin(), group.end(), group.back()) > 1) {
    ParamSpec& qkv = list_.at(groups[static_cast<size_t>(group.back())].attention.qkv.w);
    qkv.whole_scored = qkv.whole_trained = true;
  }
  for (const int64_t g : group) layers_.push_back(groups[static_cast<size_t>(g)]);
}

PostNormEncoder::LayerParams PostNormEncoder::list_layer(const PostNormNames& n, int64_t l, bool is_last,
                                                         const InputBound& input) {
  const int64_t H = shape_.hidden, F = shape_.ffn;
  const auto name = [&](const std::string& part) { return n.prefix + n.layer + std::to_string(l) + "." + part; };
  LayerParams at;
  at.attention.relative = relative_;
  at.attention.distances = distances_;
  // The matrix also multiplies the table of distances, which is only bounded by a norm.
  InputBound all_rows = input;
  if (distances_.table >= 0 && !distances_.own) {
    all_rows.other_gamma = distances_.norm.gamma;
    all_rows.other_beta = distances_.norm.beta;
    if (!shape_.distance_norm) all_rows = {};
  }
  at.attention.qkv = list_.linear({name(n.q), name(n.k), name(n.v)}, 3 * H, H, all_rows);
  DistanceParams& by_distance = at.attention.distances;
  by_distance.product = at.attention.qkv;
  if (distances_.table >= 0 && distances_.own) {
    std::vector<std::string> parts;
    if (distances_.queries) parts.push_back(name(n.distance_query));
    if (distances_.keys) parts.push_back(name(n.distance_key));
    InputBound rows;
    if (shape_.distance_norm) rows = {Bound::norm, distances_.norm.gamma, distances_.norm.beta};
    by_distance.product = list_.linear(parts, static_cast<int64_t>(parts.size()) * H, H, rows);
  }
  if (is_last) {  // a classifier only needs queries for first tokens
    ParamSpec& qkv = list_.at(at.attention.qkv.w);
    qkv.split = H;
    qkv.whole_scored = false;
    qkv.whole_trained = shape_.token_classes > 0;
  }
  // Attention averages the values, so their bound also applies to its result. Only inputs that directly follow a norm
  // have a bound.
  InputBound values;
  if (input.kind == Bound::norm)
    values = {Bound::product, input.gamma, input.beta, at.attention.qkv.w, at.attention.qkv.b, 2 * H};
  at.attention.out = list_.linear({name(n.out)}, H, H, values);
  at.norm1 = list_.norm(name(n.norm1), H);
  at.feed_forward.up = list_.linear({name(n.up)}, F, H, {Bound::norm, at.norm1.gamma, at.norm1.beta});
  at.feed_forward.down =
      list_.linear({name(n.down)}, H, F,
                   {Bound::product, at.norm1.gamma, at.norm1.beta, at.feed_forward.up.w, at.feed_forward.up.b});
  at.norm2 = list_.norm(name(n.norm2), H);
  return at;
}

void PostNormEncoder::embed(const Pass& p, const Hidden& to, EmbeddingSaved* saved) const {
  model::embed(p, embedding_, to, wanted_by(p.params, 0), saved);
}

void PostNormEncoder::embed_backward(const Pass& p, const EmbeddingSaved& saved, const TensorView& d_x) const {
  model::embed_backward(p, embedding_, saved, d_x);
}

Hidden PostNormEncoder::layer(const Pass& p, int64_t l, const Hidden& x, bool first_tokens, const Hidden& to,
                              LayerTape* tape) const {
  const LayerParams& at = layer_at(l);
  const Hidden attention =
      attend(p, at.attention, l, x, x.x, first_tokens, tape != nullptr ? &tape->attention : nullptr);
  const Hidden attended =
      norm(p, at.norm1, attention,
           {.reader = at.feed_forward.up.w, .undone = true, .keeps_columns = tape != nullptr && tape->keep_cheap},
           p.layer_dropout(l, DropoutSite::attention_out), tape != nullptr ? &tape->norm1 : nullptr);
  const Hidden fed = feed_forward(p, at.feed_forward, attended, tape != nullptr ? &tape->feed_forward : nullptr,
                                  tape != nullptr && tape->keep_cheap);
  if (l == 0 && shape_.convolution > 0) {
    const Hidden y =
        norm(p, at.norm2, fed, {.undone = true}, feed_forward_dropout(p, l), tape != nullptr ? &tape->norm2 : nullptr);
    return convolve(p, convolution_, x.x, y.x, {.to = to, .reader = reader_of(1), .undone = true},
                    tape != nullptr ? &tape->convolution : nullptr);
  }
  // The last norm keeps its sum: published models have zero gains there, which cannot be inverted.
  return norm(p, at.norm2, fed,
              {.to = to, .reader = first_tokens ? -1 : reader_of(l + 1), .undone = l + 1 < p.s.layers},
              feed_forward_dropout(p, l), tape != nullptr ? &tape->norm2 : nullptr);
}

TensorView PostNormEncoder::layer_backward(const Pass& p, int64_t l, bool first_tokens, const LayerTape& tape,
                                           const TensorView& d_y) const {
  const LayerParams& at = layer_at(l);
  const bool convolves = l == 0 && shape_.convolution > 0;
  const ConvolutionGrad convolution =
      convolves ? convolve_backward(p, convolution_, tape.convolution, d_y) : ConvolutionGrad();
  const NormGrad fed = norm_backward(p, at.norm2, tape.norm2, feed_forward_dropout(p, l),
                                     convolves ? convolution.y : d_y, {}, at.feed_forward.down);
  const TensorView d_attended = feed_forward_backward(
      p, at.feed_forward, tape.feed_forward, [&] { return tape.norm1.y; }, fed);
  const NormGrad attention = norm_backward(p, at.norm1, tape.norm1, p.layer_dropout(l, DropoutSite::attention_out),
                                           d_attended, {}, at.attention.out);
  const TensorView d_x = attend_backward(p, at.attention, l, tape.x, first_tokens, tape.attention, attention);
  if (convolves) add_unfolded(p, convolution, d_x);
  return d_x;
}

}  // namespace brim::model
