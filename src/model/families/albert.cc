// SPDX-License-Identifier: Apache-2.0
// ALBERT: groups of layers with shared parameters, usually one group for all layers; narrow embeddings with a
// projection; a pooler (dense, tanh) before the classifier.
#include "model/blocks/post_norm.h"

namespace brim::model {
namespace {

void read_albert(const hub::ConfigKeys& keys, ModelShape& shape) {
  if (const int inner = keys.integer("inner_group_num", 1, 1); inner != 1)
    keys.contradiction("\"inner_group_num\" is {}: only 1 is supported", inner);
  shape.layer_groups = keys.integer("num_hidden_groups", 1, 1, 10000);
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
  n.layer = "encoder.albert_layer_groups.";
  n.q = "albert_layers.0.attention.query";
  n.k = "albert_layers.0.attention.key";
  n.v = "albert_layers.0.attention.value";
  n.out = "albert_layers.0.attention.dense";
  n.norm1 = "albert_layers.0.attention.LayerNorm";
  n.up = "albert_layers.0.ffn";
  n.down = "albert_layers.0.ffn_output";
  n.norm2 = "albert_layers.0.full_layer_layer_norm";
  n.dense = "albert.pooler";
  return std::make_unique<PostNormEncoder>(shape, n,
                                           PostNormOptions{.always_project = true, .feed_forward_dropout = false});
}

}  // namespace

FamilyEntry albert_family() { return {make_albert, read_albert}; }

}  // namespace brim::model
