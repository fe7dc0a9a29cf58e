// SPDX-License-Identifier: Apache-2.0
// DistilBERT: no token types; dense, relu, dropout, out.
#include "model/blocks/post_norm.h"

namespace brim::model {
namespace {

std::unique_ptr<Architecture> make_distilbert(const ModelShape& shape) {
  PostNormNames n;
  n.prefix = "distilbert.";
  n.layer = "transformer.layer.";
  n.q = "attention.q_lin";
  n.k = "attention.k_lin";
  n.v = "attention.v_lin";
  n.out = "attention.out_lin";
  n.norm1 = "sa_layer_norm";
  n.up = "ffn.lin1";
  n.down = "ffn.lin2";
  n.norm2 = "output_layer_norm";
  n.dense = "pre_classifier";
  return std::make_unique<PostNormEncoder>(shape, n, PostNormOptions{.head_activation = ops::Activation::relu});
}

}  // namespace

FamilyEntry distilbert_family() { return {make_distilbert}; }

}  // namespace brim::model
