// SPDX-License-Identifier: Apache-2.0
// Sizes of partial sums for deterministic reductions in the CUDA backend, as functions of shapes only: the planner
// needs the bytes on machines without CUDA, and equal shapes must always be summed in the same order. Includes no CUDA
// headers.
#pragma once
#include <algorithm>
#include <cstdint>

namespace brim::ops {

// Two blocks per multiprocessor of a large GPU; with 256, the eight warps of a block needed nine iterations at 16,640
// rows.
constexpr int64_t kCudaPartials = 264;

// Blocks that each produce one row of sums of d_gamma, d_beta and d_bias: at most three per multiprocessor of an H200.
inline int64_t cuda_norm_partials(int64_t T) { return std::clamp<int64_t>((T + 31) / 32, 1, 396); }
inline int64_t cuda_layer_norm_grad_scratch_bytes(int64_t T, int64_t H) {
  return cuda_norm_partials(T) * 3 * H * static_cast<int64_t>(sizeof(float));
}

// Longest row normalised by one warp, which also writes the e4m3 copy; longer ones are converted by a separate pass.
constexpr int64_t kCudaNormFp8Longest = 1024;

// Row blocks of column sums (bias gradients).
inline int64_t cuda_column_partials(int64_t T) { return std::clamp<int64_t>((T + 63) / 64, 1, kCudaPartials); }
// For several lanes at once.
inline int64_t cuda_lane_sums_bytes(int64_t lanes, int64_t rows, int64_t columns) {
  return lanes * cuda_column_partials(rows) * columns * static_cast<int64_t>(sizeof(float));
}

// Rows per tile of fp8_cast; each row block produces one row of column sums.
constexpr int64_t kFp8CastRows = 128;
inline int64_t cuda_fp8_cast_blocks(int64_t T) {
  return std::clamp<int64_t>((T + kFp8CastRows - 1) / kFp8CastRows, 1, 256);
}

}  // namespace brim::ops
