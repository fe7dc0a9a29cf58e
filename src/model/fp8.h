// SPDX-License-Identifier: Apache-2.0
// fp8-e4m3 for scoring: conversion of weights, and scales of activations. A layer norm bounds what can follow it
// whatever the text is, so the scales come from the weights at load: nothing overflows, no calibration set, no pass
// over the activations at run time, and a text's result does not depend on its neighbours (docs/numerics.md).
#pragma once
#include <cstdint>
#include <span>

namespace brim::model {

// cuBLASLt multiplies in fp8 where both widths of the weights are multiples of 16; other products run in bf16.
constexpr bool fp8_takes(int64_t N, int64_t K) { return N % 16 == 0 && K % 16 == 0; }

// Largest magnitude of gamma ∘ x̂ + beta, where x̂ has mean 0 and variance 1: |x̂ᵢ| ≤ √(H−1).
float norm_bound(std::span<const float> gamma, std::span<const float> beta);
// The same of one row of W (gamma ∘ x̂ + beta) + b, the largest over the rows: ‖w ∘ gamma‖ √H + |w·beta + b|.
float product_bound(std::span<const float> w, std::span<const float> bias, std::span<const float> gamma,
                    std::span<const float> beta);

}  // namespace brim::model
