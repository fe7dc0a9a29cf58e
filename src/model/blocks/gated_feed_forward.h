// SPDX-License-Identifier: Apache-2.0
// Two products with half of the first one's result, activated, times the other half between them; forward and backward.
#pragma once
#include "model/blocks/feed_forward.h"

namespace brim::model {

// residual + feed_forward(x), to `to`. The matrix `up` has both halves, [2F,H]; nothing is dropped after the second
// product, so that it adds the residual itself.
void gated_feed_forward(const Pass& p, const FeedForwardPlaces& at, int64_t l, const Hidden& x,
                        const tensor::TensorView& residual, const tensor::TensorView& to, FeedForwardSaved* saved,
                        bool keep_active);
// `x` gives what the block read; `d`: the sum's gradient, which is also the residual's. Returns x's.
tensor::TensorView gated_feed_forward_backward(const Pass& p, const FeedForwardPlaces& at, int64_t l,
                                               const FeedForwardSaved& saved,
                                               const std::function<tensor::TensorView()>& x,
                                               const tensor::TensorView& d);

}  // namespace brim::model
