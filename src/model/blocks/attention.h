// SPDX-License-Identifier: Apache-2.0
// Self-attention with its projections, forward and backward. On first tokens alone (a classifier's last layer) keys and
// values are made for all tokens, the rest for B rows.
#pragma once
#include "model/blocks/linear.h"
#include "model/blocks/norm.h"

namespace brim::model {

struct AttentionPlaces {
  LinearPlaces qkv, out;
  int64_t relative = -1;   // table of biases by bucket of distance; -1: none
  int64_t window = 0;      // keys up to this far from their query; 0: all
  float theta = 0;         // base of rotary positions; 0: none
  bool keeps_sum = false;  // pre-norm: what the norm reads is read again
};

struct AttentionSaved {
  tensor::TensorView qkv;           // [T,3H]; on first tokens: kv [T,2H]
  tensor::TensorView q, first;      // on first tokens: [B,H] queries and the input rows they came from
  tensor::TensorView context, lse;  // [rows,H], [rows,N]
  tensor::TensorView bias;          // [N,kRelativeWidth], where there is a table
  // In fp8, columns of what the products read: of the input, of first tokens' rows of it and of the context.
  Operand input, first_input, context_input;
  bool keep_input = true;  // false: the input's are made again
};

// The rows of first tokens, [B,H].
tensor::TensorView gather_first_tokens(const Pass& p, const tensor::TensorView& x);

// residual + attention(x), for all rows or for first tokens; the sum is its reader's to make. `residual`: x itself, or
// what x is the norm of.
Hidden attend(const Pass& p, const AttentionPlaces& at, int64_t l, const Hidden& x, const tensor::TensorView& residual,
              bool first_tokens, AttentionSaved* saved);
// `x`: what attention read; in fp8 it may be empty where the input's columns were kept. `d`: the sum's gradient, from
// the norm that read it and summed the output's bias. Returns that of x [T,H], in which
// the residual's is counted unless x is `normed` from it.
tensor::TensorView attend_backward(const Pass& p, const AttentionPlaces& at, int64_t l, const tensor::TensorView& x,
                                   bool first_tokens, const AttentionSaved& saved, const NormGrad& d,
                                   bool normed = false);

}  // namespace brim::model
