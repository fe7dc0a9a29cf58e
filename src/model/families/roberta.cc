// SPDX-License-Identifier: Apache-2.0
// RoBERTa, including XLM-R and CamemBERT, which have the same architecture: dropout, dense, tanh, dropout, out.
#include "model/blocks/post_norm.h"

namespace brim::model {
namespace {

std::unique_ptr<Architecture> make_roberta(const ModelShape& shape) {
  PostNormNames n;
  n.prefix = "roberta.";
  n.dense = "classifier.dense";
  n.sequence = "classifier.out_proj";
  return std::make_unique<PostNormEncoder>(shape, n, PostNormOptions{.head_dropout_first = true});
}

}  // namespace

FamilyEntry roberta_family() { return {make_roberta}; }

}  // namespace brim::model
