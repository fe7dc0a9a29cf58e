// SPDX-License-Identifier: Apache-2.0
#include "model/params.h"

#include <fmt/format.h>

#include "model/fp8.h"
#include "model/weights.h"

namespace brim::model {

using hub::Family;
using ops::Precision;

namespace {

// The names one family gives to the same places.
struct Names {
  std::string prefix, word, position, type, norm;
  std::string layer, q, k, v, out, norm1, ffn1, ffn2, norm2;
  std::string dense, sequence, token;
};

Names names_of(Family family) {
  const Names bert = {"bert.",
                      "embeddings.word_embeddings.weight",
                      "embeddings.position_embeddings.weight",
                      "embeddings.token_type_embeddings.weight",
                      "embeddings.LayerNorm",
                      "encoder.layer.",
                      "attention.self.query",
                      "attention.self.key",
                      "attention.self.value",
                      "attention.output.dense",
                      "attention.output.LayerNorm",
                      "intermediate.dense",
                      "output.dense",
                      "output.LayerNorm",
                      "bert.pooler.dense",
                      "classifier",
                      "classifier"};
  if (family == Family::bert) return bert;
  if (family == Family::roberta) {
    Names n = bert;
    n.prefix = "roberta.";
    n.dense = "classifier.dense";
    n.sequence = "classifier.out_proj";
    return n;
  }
  return {"distilbert.",
          "embeddings.word_embeddings.weight",
          "embeddings.position_embeddings.weight",
          "",
          "embeddings.LayerNorm",
          "transformer.layer.",
          "attention.q_lin",
          "attention.k_lin",
          "attention.v_lin",
          "attention.out_lin",
          "sa_layer_norm",
          "ffn.lin1",
          "ffn.lin2",
          "output_layer_norm",
          "pre_classifier",
          "classifier",
          "classifier"};
}

}  // namespace

HeadIndex head_index(const ModelShape& shape) {
  const int64_t at = ParamIndex::layer(shape.layers);
  return {at, at + 1, at + 2, at + 3, at + 4, at + 5};
}

std::vector<ParamSpec> model_params(const ModelShape& s) {
  using P = ParamIndex;
  using Bound = InputBound::Kind;
  const Names n = names_of(s.family);
  const int64_t H = s.hidden, F = s.ffn;
  std::vector<ParamSpec> all;
  auto add = [&](std::vector<std::string> names, int64_t rows, int64_t cols, ParamKind kind) -> ParamSpec& {
    ParamSpec& p = all.emplace_back();
    p.names = std::move(names);
    p.rows = rows;
    p.cols = cols;
    p.kind = kind;
    return p;
  };
  auto encoder = [&](const std::string& name) { return n.prefix + name; };
  add({encoder(n.word)}, s.vocab, H, ParamKind::embedding).int8 = true;
  add({encoder(n.position)}, s.positions, H, ParamKind::embedding);
  add({encoder(n.type)}, s.types, H, ParamKind::embedding);
  add({encoder(n.norm) + ".weight"}, H, 0, ParamKind::norm);
  add({encoder(n.norm) + ".bias"}, H, 0, ParamKind::norm);
  for (int64_t l = 0; l < s.layers; ++l) {
    const int64_t at = P::layer(l);
    const int64_t gamma = l == 0 ? int64_t{P::embed_gamma} : P::layer(l - 1) + P::norm2_gamma;
    auto name = [&](const std::string& part, const char* what) {
      return fmt::format("{}{}{}.{}.{}", n.prefix, n.layer, l, part, what);
    };
    auto matrix = [&](std::vector<std::string> names, int64_t rows, int64_t cols, InputBound input) -> ParamSpec& {
      ParamSpec& p = add(std::move(names), rows, cols, ParamKind::matrix);
      p.int8 = true;
      p.input = input;
      return p;
    };
    ParamSpec& qkv = matrix({name(n.q, "weight"), name(n.k, "weight"), name(n.v, "weight")}, 3 * H, H,
                            {Bound::norm, gamma, gamma + 1});
    if (l + 1 == s.layers) {
      qkv.split = H;
      qkv.whole_scored = false;
      qkv.whole_trained = s.token_classes > 0;
    }
    add({name(n.q, "bias"), name(n.k, "bias"), name(n.v, "bias")}, 3 * H, 0, ParamKind::bias);
    matrix({name(n.out, "weight")}, H, H, {Bound::product, gamma, gamma + 1, at + P::qkv_w, at + P::qkv_b, 2 * H});
    add({name(n.out, "bias")}, H, 0, ParamKind::bias);
    add({name(n.norm1, "weight")}, H, 0, ParamKind::norm);
    add({name(n.norm1, "bias")}, H, 0, ParamKind::norm);
    matrix({name(n.ffn1, "weight")}, F, H, {Bound::norm, at + P::norm1_gamma, at + P::norm1_beta});
    add({name(n.ffn1, "bias")}, F, 0, ParamKind::bias);
    matrix({name(n.ffn2, "weight")}, H, F,
           {Bound::product, at + P::norm1_gamma, at + P::norm1_beta, at + P::ffn1_w, at + P::ffn1_b});
    add({name(n.ffn2, "bias")}, H, 0, ParamKind::bias);
    add({name(n.norm2, "weight")}, H, 0, ParamKind::norm);
    add({name(n.norm2, "bias")}, H, 0, ParamKind::norm);
    for (size_t i = static_cast<size_t>(at); i < all.size(); ++i) all[i].layer = l;
  }
  const size_t head = all.size();
  const int64_t dense = s.sequence_classes > 0 ? H : 0;
  // With both heads on one encoder the token head needs a name of its own.
  const std::string token = s.sequence_classes > 0 && s.token_classes > 0 ? "token_classifier" : n.token;
  add({n.dense + ".weight"}, dense, H, ParamKind::matrix);
  add({n.dense + ".bias"}, dense, 0, ParamKind::bias);
  add({n.sequence + ".weight"}, s.sequence_classes, H, ParamKind::matrix);
  add({n.sequence + ".bias"}, s.sequence_classes, 0, ParamKind::bias);
  add({token + ".weight"}, s.token_classes, H, ParamKind::matrix);
  add({token + ".bias"}, s.token_classes, 0, ParamKind::bias);
  for (size_t i = head; i < all.size(); ++i) {
    all[i].head = true;
    all[i].classes = i >= head + 2;
  }
  return all;
}

std::vector<size_t> places_of_layer(const std::vector<ParamSpec>& params, int64_t l) {
  std::vector<size_t> places;
  for (size_t i = 0; i < params.size(); ++i)
    if (params[i].layer == l) places.push_back(i);
  return places;
}

Precision matrix_precision(const ParamSpec& spec, Precision precision, device::DeviceKind target) {
  if (spec.head) return head_precision(precision, target);
  if (precision != Precision::fp8) return precision;
  return spec.input.kind != InputBound::Kind::none && fp8_takes(spec.rows, spec.cols) ? precision : Precision::bf16;
}

int64_t param_count(const ModelShape& shape) {
  int64_t n = 0;
  for (const auto& p : model_params(shape)) n += p.elements();
  return n;
}

}  // namespace brim::model
