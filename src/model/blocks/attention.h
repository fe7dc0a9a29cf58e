// SPDX-License-Identifier: Apache-2.0
// Self-attention with its projections, forward and backward. With first_tokens (a classifier's last layer), keys and
// values are computed for all tokens, everything else for B rows. Does not include the norms.
#pragma once
#include "model/blocks/distance.h"
#include "model/blocks/linear.h"
#include "model/blocks/norm.h"

namespace brim::model {

struct AttentionParams {
  LinearParams qkv, out;
  int64_t relative = -1;  // bias table by distance bucket; -1: none
  DistanceParams distances;
  int64_t window = 0;      // maximum distance between query and key; 0: unlimited
  float theta = 0;         // base of rotary positions; 0: none
  bool keeps_sum = false;  // pre-norm: the sum is read again after the norm
};

struct AttentionSaved {
  tensor::TensorView qkv;           // [T,3H]; on first tokens: kv [T,2H]
  tensor::TensorView q, first;      // with first_tokens: [B,H] queries and their input rows
  tensor::TensorView context, lse;  // [rows,H], [rows,N]
  tensor::TensorView bias;          // [N,kRelativeWidth] if there is a bias table
  DistanceSaved distances;
  // fp8: transposed inputs of the products: the layer input, its first-token rows, and the context.
  Operand input, first_input, context_input;
  bool keep_input = true;  // false: the input's columns are recomputed
};

// Gathers the rows of first tokens, [B,H].
tensor::TensorView gather_first_tokens(const Pass& p, const tensor::TensorView& x);

// residual + attention(x), for all rows or for first tokens; the reader computes the sum. `residual`: x itself, or the
// tensor that x is the norm of.
Hidden attend(const Pass& p, const AttentionParams& at, int64_t l, const Hidden& x, const tensor::TensorView& residual,
              bool first_tokens, AttentionSaved* saved);
// `x`: input of attention; in fp8 it may be empty if the input's columns were kept. `d`: gradient of the sum, from the
// norm that read it and accumulated the output bias's gradient. Returns the gradient of x [T,H], which includes the
// residual's unless x is `normed` from it.
tensor::TensorView attend_backward(const Pass& p, const AttentionParams& at, int64_t l, const tensor::TensorView& x,
                                   bool first_tokens, const AttentionSaved& saved, const NormGrad& d,
                                   bool normed = false);

}  // namespace brim::model
