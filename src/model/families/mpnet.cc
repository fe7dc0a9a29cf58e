// SPDX-License-Identifier: Apache-2.0
// MPNet: no token types; one table of biases by distance, added to the attention scores of every layer; dropout, dense,
// tanh, dropout, out.
#include "model/blocks/post_norm.h"
#include "ops/relative_bias.h"

namespace brim::model {
namespace {

int64_t buckets_of(const hub::ConfigKeys& keys) {
  const int buckets = keys.integer("relative_attention_num_buckets", 32, 1);
  // transformers always uses 32 buckets regardless of the key; the table must have at least as many.
  if (buckets < ops::kRelativeBuckets)
    keys.contradiction("\"relative_attention_num_buckets\" is {}: must be at least {}", buckets, ops::kRelativeBuckets);
  return buckets;
}

void read_mpnet(const hub::ConfigKeys& keys, ModelShape& shape) {
  shape.relative_buckets = buckets_of(keys);
  shape.types = 0;
  if (shape.padding_id != 1) keys.contradiction("\"pad_token_id\" is {}: must be 1", shape.padding_id);
}

std::unique_ptr<Architecture> make_mpnet(const ModelShape& shape) {
  PostNormNames n;
  n.prefix = "mpnet.";
  n.relative = "encoder.relative_attention_bias.weight";
  n.q = "attention.attn.q";
  n.k = "attention.attn.k";
  n.v = "attention.attn.v";
  n.out = "attention.attn.o";
  n.norm1 = "attention.LayerNorm";
  n.dense = "classifier.dense";
  n.sequence = "classifier.out_proj";
  return std::make_unique<PostNormEncoder>(shape, n, PostNormOptions{.head_dropout_first = true});
}

}  // namespace

FamilyEntry mpnet_family() { return {make_mpnet, read_mpnet}; }

}  // namespace brim::model
