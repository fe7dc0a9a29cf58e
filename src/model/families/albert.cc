// SPDX-License-Identifier: Apache-2.0
// ALBERT: one layer's parameters for all layers, narrow embeddings that are always projected; a pooler (dense, tanh)
// before the classifier.
#include "model/blocks/post_norm.h"

namespace brim::model {
namespace {

void read_albert(const hub::ConfigKeys& keys, ModelShape& shape) {
  for (const char* key : {"num_hidden_groups", "inner_group_num"})
    if (const int groups = keys.integer(key, 1, 1); groups != 1)
      keys.contradiction("\"{}\" is {}: Brim runs ALBERT with 1, the same layer throughout", key, groups);
  shape.embedding = keys.integer("embedding_size", 128, 1);
  if (keys.get("hidden_act") == nullptr) shape.activation = ops::Activation::gelu_tanh;
  shape.hidden_dropout = keys.number("hidden_dropout_prob", 0, 0, 1);
  shape.attention_dropout = keys.number("attention_probs_dropout_prob", 0, 0, 1);
  shape.head_dropout = keys.number("classifier_dropout_prob", 0.1f, 0, 1);
}

std::unique_ptr<Architecture> make_albert(const ModelShape& shape) {
  PostNormNames n;
  n.prefix = "albert.";
  n.project = "encoder.embedding_hidden_mapping_in";
  n.layer = "encoder.albert_layer_groups.0.albert_layers.";
  n.q = "attention.query";
  n.k = "attention.key";
  n.v = "attention.value";
  n.out = "attention.dense";
  n.norm1 = "attention.LayerNorm";
  n.up = "ffn";
  n.down = "ffn_output";
  n.norm2 = "full_layer_layer_norm";
  n.dense = "albert.pooler";
  return std::make_unique<PostNormEncoder>(
      shape, n, PostNormOptions{.shared_layers = true, .always_project = true, .feed_forward_dropout = false});
}

}  // namespace

FamilyEntry albert_family() { return {make_albert, read_albert}; }

}  // namespace brim::model
