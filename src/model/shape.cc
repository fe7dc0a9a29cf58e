// SPDX-License-Identifier: Apache-2.0
#include "model/shape.h"

#include <algorithm>
#include <bit>

#include "hub/hf_config.h"
#include "model/architecture.h"

namespace brim::model {

using hub::HiddenAct;
using ops::Activation;

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
  s.raw_scores = head == hub::HeadKind::sequence && c.raw_scores;
  s.activation = activation_of(c.activation);
  s.eps = c.layer_norm_eps;
  s.hidden_dropout = c.hidden_dropout;
  s.attention_dropout = c.attention_dropout;
  s.head_dropout = head == hub::HeadKind::token ? c.token_classifier_dropout : c.classifier_dropout;
  if (const auto read = family_entry(s.family).read) read(hub::ConfigKeys(c), s);
  return s;
}

double forward_flops(const ModelShape& s, double tokens, double sum_squares) {
  const auto H = static_cast<double>(s.hidden), F = static_cast<double>(s.ffn), L = static_cast<double>(s.layers);
  const double project = s.embedding_size() == s.hidden ? 0 : 2 * static_cast<double>(s.embedding_size()) * H * tokens;
  const double local = s.window > 0 ? std::popcount(s.local_layers) : 0;
  const double local_pairs = std::min(sum_squares, tokens * static_cast<double>(2 * s.window + 1));
  const double terms = (s.distance_queries ? 1 : 0) + (s.distance_keys ? 1 : 0);
  const double convolve = 2 * H * H * static_cast<double>(s.convolution) * tokens;
  return project + convolve + 2 * terms * H * L * sum_squares +
         L * 2 * (4 * H * H + (s.gated ? 3 : 2) * H * F) * tokens +
         4 * H * ((L - local) * sum_squares + local * local_pairs);
}

}  // namespace brim::model
