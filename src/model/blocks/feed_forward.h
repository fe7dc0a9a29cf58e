// SPDX-License-Identifier: Apache-2.0
// Feed-forward block: two products with an activation between them, forward and backward. Does not include the norm.
#pragma once
#include <functional>

#include "model/blocks/linear.h"
#include "model/blocks/norm.h"

namespace brim::model {

struct FeedForwardParams {
  LinearParams up, down;
};

struct FeedForwardSaved {
  tensor::TensorView wide;        // [rows,F] before the activation, [rows,2F] with a gate
  tensor::TensorView active;      // [rows,F] after the activation; empty: recomputed
  Operand input_fp8, active_fp8;  // fp8: transposed inputs of both products; empty: recomputed
};

// x + feed_forward(x); the reader computes the sum. `keep_active`: also keep values that are cheap to recompute.
Hidden feed_forward(const Pass& p, const FeedForwardParams& at, const Hidden& x, FeedForwardSaved* saved,
                    bool keep_active);
// `x` provides the input of the block on demand, because it may have to be recomputed. `d`: gradient of the sum, from
// the norm that read it and accumulated the last bias's gradient. Overwrites `saved`. Returns the gradient of x, in the
// memory of d.residual.
tensor::TensorView feed_forward_backward(const Pass& p, const FeedForwardParams& at, const FeedForwardSaved& saved,
                                         const std::function<tensor::TensorView()>& x, const NormGrad& d);

}  // namespace brim::model
