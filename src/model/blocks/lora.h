// SPDX-License-Identifier: Apache-2.0
// LoRA: the product of two thin matrices that is added to a matrix product, forward and backward. Called by
// blocks/linear.cc for every matrix; does nothing if it is not adapted.
#pragma once
#include "model/pass.h"

namespace brim::model {

// Rows [begin,end) of matrix `w` plus scale · B A, in the compute type; empty if not adapted, on a CPU, or with
// dropout. On a GPU, this sum costs much less than thin products over all tokens (docs/decisions.md).
tensor::TensorView merge_lora(const Pass& p, int64_t w, int64_t begin, int64_t end);

// y += scale · (dropout(x) Aᵀ) Bᵀ. y has the results of rows [begin,end) of matrix `w`.
void add_lora(const Pass& p, const tensor::TensorView& x, int64_t w, int64_t begin, int64_t end,
              const tensor::TensorView& y);

// Accumulates the gradients of A and B if `x` is given, and the gradient of x if `d_x` is. Recomputes x Aᵀ, which costs
// less than keeping it would gain.
void lora_backward(const Pass& p, const tensor::TensorView& x, int64_t w, int64_t begin, int64_t end,
                   const tensor::TensorView& d_y, const tensor::TensorView& d_x);

}  // namespace brim::model
