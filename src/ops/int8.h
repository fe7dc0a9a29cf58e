// SPDX-License-Identifier: Apache-2.0
// Layout of int8 operands on CUDA. Rows of activations have one scale each, or one for each kInt8Block columns if the
// kernel that computes them does not see whole rows. Scales are stored by block: [blocks,T] f32.
#pragma once
#include <cstdint>

namespace brim::ops {

// The kernels read 16 bytes at a time; products with other dimensions run in half precision.
constexpr int64_t kInt8Multiple = 16;
constexpr bool int8_takes(int64_t N, int64_t K) { return N % kInt8Multiple == 0 && K % kInt8Multiple == 0; }

constexpr int64_t kInt8Block = 64;
constexpr int64_t int8_blocks(int64_t columns) { return (columns + kInt8Block - 1) / kInt8Block; }

// Converts a row of weights to int8 and returns its scale (linear_pack.cc). A row of zeros, or with NaN or infinity,
// becomes zeros and a scale that preserves this.
float quantise_int8(const float* x, int64_t n, int8_t* codes);

}  // namespace brim::ops
