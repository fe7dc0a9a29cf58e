// SPDX-License-Identifier: Apache-2.0
// Partial sums of the CUDA backend's deterministic reductions, as functions of the shapes alone: the planner asks for
// the bytes on machines without CUDA, and the same shapes must always be added in the same order. No CUDA header here.
#pragma once
#include <algorithm>
#include <cstdint>

namespace brim::ops {

// Two blocks on each multiprocessor of a large card; with 256 a block's eight warps took nine turns at 16,640 rows.
constexpr int64_t kCudaPartials = 264;

// Blocks whose sums of d_gamma, d_beta and d_bias are one row each: at most three per multiprocessor of an H200.
inline int64_t cuda_norm_partials(int64_t T) { return std::clamp<int64_t>((T + 31) / 32, 1, 396); }
inline int64_t cuda_layer_norm_grad_scratch_bytes(int64_t T, int64_t H) {
  return cuda_norm_partials(T) * 3 * H * static_cast<int64_t>(sizeof(float));
}

// Rows that a warp norms, and copies in e4m3 on the way; longer ones are cast by a pass of their own.
constexpr int64_t kCudaNormFp8Longest = 1024;

// Row blocks of column sums (bias gradients).
inline int64_t cuda_column_partials(int64_t T) { return std::clamp<int64_t>((T + 63) / 64, 1, kCudaPartials); }
// The same of several lanes at once.
inline int64_t cuda_lane_sums_bytes(int64_t lanes, int64_t rows, int64_t columns) {
  return lanes * cuda_column_partials(rows) * columns * static_cast<int64_t>(sizeof(float));
}

// Row blocks of fp8_cast, whose tiles have so many rows; each leaves one row of column sums.
constexpr int64_t kFp8CastRows = 128;
inline int64_t cuda_fp8_cast_blocks(int64_t T) {
  return std::clamp<int64_t>((T + kFp8CastRows - 1) / kFp8CastRows, 1, 256);
}

}  // namespace brim::ops
