// SPDX-License-Identifier: Apache-2.0
// ELECTRA's discriminator: BERT with optionally narrower embeddings; dropout, dense, gelu, dropout, out.
#include "model/blocks/post_norm.h"

namespace brim::model {
namespace {

void read_electra(const hub::ConfigKeys& keys, ModelShape& shape) {
  shape.embedding = keys.integer("embedding_size", 128, 1);
}

std::unique_ptr<Architecture> make_electra(const ModelShape& shape) {
  PostNormNames n;
  n.prefix = "electra.";
  n.project = "embeddings_project";
  n.dense = "classifier.dense";
  n.sequence = "classifier.out_proj";
  return std::make_unique<PostNormEncoder>(
      shape, n, PostNormOptions{.head_activation = ops::Activation::gelu, .head_dropout_first = true});
}

}  // namespace

FamilyEntry electra_family() { return {make_electra, read_electra}; }

}  // namespace brim::model
