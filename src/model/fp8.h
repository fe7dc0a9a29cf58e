// SPDX-License-Identifier: Apache-2.0
// fp8-e4m3 for inference: weight conversion and activation scales. A layer norm bounds the values that follow it for
// any text, so the scales are computed from the weights at load time: no overflow, no calibration set, no pass over the
// activations at run time, and results do not depend on the batch composition (docs/numerics.md).
#pragma once
#include <cstdint>
#include <span>

namespace brim::model {

// cuBLASLt multiplies in fp8 if both dimensions of the weights are multiples of 16; other products run in bf16.
constexpr bool fp8_takes(int64_t N, int64_t K) { return N % 16 == 0 && K % 16 == 0; }

// Largest magnitude of gamma ∘ x̂ + beta for x̂ with mean 0 and variance 1: |x̂ᵢ| ≤ √(H−1).
float norm_bound(std::span<const float> gamma, std::span<const float> beta);
// Same for W (gamma ∘ x̂ + beta) + b, the maximum over its rows: ‖w ∘ gamma‖ √H + |w·beta + b|.
float product_bound(std::span<const float> w, std::span<const float> bias, std::span<const float> gamma,
                    std::span<const float> beta);

}  // namespace brim::model
