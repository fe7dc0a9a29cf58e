// SPDX-License-Identifier: Apache-2.0
// Two products with an activation between them, forward and backward.
#pragma once
#include <functional>

#include "model/blocks/linear.h"
#include "model/blocks/norm.h"

namespace brim::model {

struct FeedForwardPlaces {
  LinearPlaces up, down;
};

struct FeedForwardSaved {
  tensor::TensorView wide;        // [rows,F] before the activation, [rows,2F] with a gate
  tensor::TensorView active;      // [rows,F] after it; empty: made again
  Operand input_fp8, active_fp8;  // columns of what both products read in fp8; empty: made again
};

// x + feed_forward(x); the sum is its reader's to make. `keep_active`: keep what is cheap to make again, too.
Hidden feed_forward(const Pass& p, const FeedForwardPlaces& at, const Hidden& x, FeedForwardSaved* saved,
                    bool keep_active);
// `x` gives what the block read, which may have to be made again, when it is needed; `d`: the sum's gradient, from the
// norm that read it and summed the last bias. What was saved is overwritten. Returns x's gradient, in the memory of
// d.residual.
tensor::TensorView feed_forward_backward(const Pass& p, const FeedForwardPlaces& at, const FeedForwardSaved& saved,
                                         const std::function<tensor::TensorView()>& x, const NormGrad& d);

}  // namespace brim::model
