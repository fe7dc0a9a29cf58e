// SPDX-License-Identifier: Apache-2.0
// BERT: a pooler (dense, tanh) before the classifier.
#include "model/blocks/post_norm.h"

namespace brim::model {
namespace {

std::unique_ptr<Architecture> make_bert(const ModelShape& shape) {
  PostNormNames n;
  n.prefix = "bert.";
  n.dense = "bert.pooler.dense";
  return std::make_unique<PostNormEncoder>(shape, n, PostNormOptions{});
}

}  // namespace

FamilyEntry bert_family() { return {make_bert}; }

}  // namespace brim::model
