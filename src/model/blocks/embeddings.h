// SPDX-License-Identifier: Apache-2.0
// The start of an encoder: rows of the tables added up, normed, dropped out and, where they are narrower than the
// model, projected to its width. Forward and backward.
#pragma once
#include "model/blocks/linear.h"
#include "model/blocks/norm.h"

namespace brim::model {

struct EmbeddingPlaces {
  int64_t word = -1, position = -1, type = -1;  // -1: no such table
  NormPlaces norm;
  LinearPlaces project;  // -1: the tables are as wide as the model
};

struct EmbeddingSaved {
  NormSaved norm;
  Operand y;  // [T,E] what is projected
};

// To `to`, its narrow copy (where there is one) in the scale its reader wants.
void embed(const Pass& p, const EmbeddingPlaces& at, const Hidden& to, const Fp8Scale& fp8, EmbeddingSaved* saved);
void embed_backward(const Pass& p, const EmbeddingPlaces& at, const EmbeddingSaved& saved, tensor::TensorView d_x);

}  // namespace brim::model
