// SPDX-License-Identifier: Apache-2.0
// Vectors by distance for attention (DeBERTa): the rows of a table that a batch needs, normed, projected like queries
// and keys, and expanded to one row per distance. Forward and backward; every layer projects the same table.
#pragma once
#include "model/blocks/linear.h"
#include "model/blocks/norm.h"

namespace brim::model {

struct DistanceParams {
  int64_t table = -1;  // [2 span,H]; -1: none
  NormParams norm;     // -1: none
  // Projection to queries, then keys: either the first rows of the layer's qkv, or its own matrix with only the used
  // parts.
  LinearParams product;
  bool own = false;
  bool queries = false, keys = false;  // parts in use
};

struct DistanceTables {
  tensor::TensorView queries, keys;  // [2S-1,H] each; empty if not used
};
struct DistanceSaved {
  DistanceTables tables;
  NormSaved norm;
  Operand input;  // input of the projection
  int64_t first = 0;
};

// `in_parts`: the layer multiplies its qkv in two parts.
DistanceTables distance_tables(const Pass& p, const DistanceParams& at, int64_t l, bool in_parts, DistanceSaved* saved);
// Allocates f32 gradients of the tables.
DistanceTables allocate_gradients(const Pass& p, const DistanceTables& tables);
void distance_backward(const Pass& p, const DistanceParams& at, int64_t l, const DistanceSaved& saved,
                       const DistanceTables& grad);

}  // namespace brim::model
