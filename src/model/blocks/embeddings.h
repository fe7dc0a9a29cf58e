// SPDX-License-Identifier: Apache-2.0
// Embeddings: sum of the table rows, norm, dropout and, if the tables are narrower than the model, a projection to its
// width. Forward and backward.
#pragma once
#include "model/blocks/linear.h"
#include "model/blocks/norm.h"

namespace brim::model {

struct EmbeddingParams {
  int64_t word = -1, position = -1, type = -1;  // -1: no table
  NormParams norm;
  LinearParams project;  // -1: the tables have the model's width
};

struct EmbeddingSaved {
  NormSaved norm;
  Operand y;  // [T,E] input of the projection
};

// Writes to `to`, and to its narrow copy, if any, in the scale that its reader needs.
void embed(const Pass& p, const EmbeddingParams& at, const Hidden& to, const Fp8Scale& fp8, EmbeddingSaved* saved);
void embed_backward(const Pass& p, const EmbeddingParams& at, const EmbeddingSaved& saved, tensor::TensorView d_x);

}  // namespace brim::model
