// SPDX-License-Identifier: Apache-2.0
#include "model/shape.h"

#include <fmt/format.h>

#include "hub/hf_config.h"

namespace brim::model {

using hub::Family;
using hub::HiddenAct;
using ops::Activation;

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

Activation activation_of(HiddenAct act) {
  switch (act) {
    case HiddenAct::gelu_erf:
      return Activation::gelu;
    case HiddenAct::gelu_tanh:
      return Activation::gelu_tanh;
    case HiddenAct::quick_gelu:
      return Activation::quick_gelu;
    case HiddenAct::relu:
      return Activation::relu;
    case HiddenAct::silu:
      return Activation::silu;
    case HiddenAct::tanh:
      return Activation::tanh;
  }
  return Activation::gelu;
}

}  // namespace

ModelShape shape_of(const hub::HfConfig& c, hub::HeadKind head) {
  ModelShape s;
  s.family = c.family;
  s.layers = c.num_layers;
  s.hidden = c.hidden_size;
  s.heads = c.num_heads;
  s.ffn = c.intermediate_size;
  s.vocab = c.vocab_size;
  s.positions = c.max_position_embeddings;
  s.types = c.type_vocab_size;
  s.position_offset = c.first_position();
  s.padding_id = c.pad_token_id;
  s.sequence_classes = head == hub::HeadKind::sequence ? c.num_labels : 0;
  s.token_classes = head == hub::HeadKind::token ? c.num_labels : 0;
  s.multi_label = c.problem_type == "multi_label_classification";
  s.activation = activation_of(c.activation);
  s.eps = c.layer_norm_eps;
  s.hidden_dropout = c.hidden_dropout;
  s.attention_dropout = c.attention_dropout;
  s.head_dropout = head == hub::HeadKind::token ? c.token_classifier_dropout : c.classifier_dropout;
  return s;
}

double forward_flops(const ModelShape& s, double tokens, double sum_squares) {
  const auto H = static_cast<double>(s.hidden), F = static_cast<double>(s.ffn), L = static_cast<double>(s.layers);
  return L * (2 * (4 * H * H + 2 * H * F) * tokens + 4 * H * sum_squares);
}

Activation head_activation(Family family) { return family == Family::distilbert ? Activation::relu : Activation::tanh; }

HeadIndex head_index(const ModelShape& shape) {
  const int64_t at = ParamIndex::layer(shape.layers);
  return {at, at + 1, at + 2, at + 3, at + 4, at + 5};
}

std::vector<ParamSpec> model_params(const ModelShape& s) {
  const Names n = names_of(s.family);
  const int64_t H = s.hidden, F = s.ffn;
  std::vector<ParamSpec> all;
  auto add = [&](std::vector<std::string> names, int64_t rows, int64_t cols, ParamKind kind, bool head = false) {
    all.push_back({std::move(names), rows, cols, kind, head});
  };
  auto encoder = [&](const std::string& name) { return n.prefix + name; };
  add({encoder(n.word)}, s.vocab, H, ParamKind::embedding);
  add({encoder(n.position)}, s.positions, H, ParamKind::embedding);
  add({encoder(n.type)}, s.types, H, ParamKind::embedding);
  add({encoder(n.norm) + ".weight"}, H, 0, ParamKind::norm);
  add({encoder(n.norm) + ".bias"}, H, 0, ParamKind::norm);
  for (int64_t l = 0; l < s.layers; ++l) {
    auto name = [&](const std::string& part, const char* what) {
      return fmt::format("{}{}{}.{}.{}", n.prefix, n.layer, l, part, what);
    };
    add({name(n.q, "weight"), name(n.k, "weight"), name(n.v, "weight")}, 3 * H, H, ParamKind::matrix);
    add({name(n.q, "bias"), name(n.k, "bias"), name(n.v, "bias")}, 3 * H, 0, ParamKind::bias);
    add({name(n.out, "weight")}, H, H, ParamKind::matrix);
    add({name(n.out, "bias")}, H, 0, ParamKind::bias);
    add({name(n.norm1, "weight")}, H, 0, ParamKind::norm);
    add({name(n.norm1, "bias")}, H, 0, ParamKind::norm);
    add({name(n.ffn1, "weight")}, F, H, ParamKind::matrix);
    add({name(n.ffn1, "bias")}, F, 0, ParamKind::bias);
    add({name(n.ffn2, "weight")}, H, F, ParamKind::matrix);
    add({name(n.ffn2, "bias")}, H, 0, ParamKind::bias);
    add({name(n.norm2, "weight")}, H, 0, ParamKind::norm);
    add({name(n.norm2, "bias")}, H, 0, ParamKind::norm);
  }
  const int64_t dense = s.sequence_classes > 0 ? H : 0;
  // With both heads on one encoder the token head needs a name of its own.
  const std::string token = s.sequence_classes > 0 && s.token_classes > 0 ? "token_classifier" : n.token;
  add({n.dense + ".weight"}, dense, H, ParamKind::matrix, true);
  add({n.dense + ".bias"}, dense, 0, ParamKind::bias, true);
  add({n.sequence + ".weight"}, s.sequence_classes, H, ParamKind::matrix, true);
  add({n.sequence + ".bias"}, s.sequence_classes, 0, ParamKind::bias, true);
  add({token + ".weight"}, s.token_classes, H, ParamKind::matrix, true);
  add({token + ".bias"}, s.token_classes, 0, ParamKind::bias, true);
  return all;
}

int64_t param_count(const ModelShape& shape) {
  int64_t n = 0;
  for (const auto& p : model_params(shape)) n += p.elements();
  return n;
}

}  // namespace brim::model
