// SPDX-License-Identifier: Apache-2.0
// Gated feed-forward block: the first product's result is split in two halves, one is activated and multiplied by the
// other, then the second product follows. Forward and backward.
#pragma once
#include "model/blocks/feed_forward.h"

namespace brim::model {

// residual + feed_forward(x), to `to`. The matrix `up` has both halves, [2F,H]. No dropout follows the second product,
// so it adds the residual itself.
void gated_feed_forward(const Pass& p, const FeedForwardParams& at, int64_t l, const Hidden& x,
                        const tensor::TensorView& residual, const tensor::TensorView& to, FeedForwardSaved* saved,
                        bool keep_active);
// `x` provides the input of the block; `d`: gradient of the sum and of the residual. Returns the gradient of x.
tensor::TensorView gated_feed_forward_backward(const Pass& p, const FeedForwardParams& at, int64_t l,
                                               const FeedForwardSaved& saved,
                                               const std::function<tensor::TensorView()>& x,
                                               const tensor::TensorView& d);

}  // namespace brim::model
