// SPDX-License-Identifier: Apache-2.0
// Self-attention with its projections, forward and backward. On first tokens alone (a classifier's last layer) keys and
// values are made for all tokens, the rest for B rows.
#pragma once
#include "model/blocks/linear.h"
#include "model/blocks/norm.h"

namespace brim::model {

struct AttentionPlaces {
  LinearPlaces qkv, out;
  int64_t relative = -1;  // table of biases by bucket of distance; -1: none
};

struct AttentionSaved {
  tensor::TensorView qkv;           // [T,3H]; on first tokens: kv [T,2H]
  tensor::TensorView q, first;      // on first tokens: [B,H] queries and the input rows they came from
  tensor::TensorView context, lse;  // [rows,H], [rows,N]
  tensor::TensorView bias;          // [N,kRelativeWidth], where there is a table
};

// x + attention(x), for all rows or for first tokens; the sum is its reader's to make.
Hidden attend(const Pass& p, const AttentionPlaces& at, int64_t l, const Hidden& x, bool first_tokens,
              AttentionSaved* saved);
// `d`: the sum's gradient, from the norm that read it. Returns that of x [T,H].
tensor::TensorView attend_backward(const Pass& p, const AttentionPlaces& at, int64_t l, const tensor::TensorView& x,
                                   bool first_tokens, const AttentionSaved& saved, const NormGrad& d);

}  // namespace brim::model
