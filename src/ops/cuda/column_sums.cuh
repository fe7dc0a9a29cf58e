// SPDX-License-Identifier: Apache-2.0
// Column sums in a fixed order (bias gradients), of one matrix or of one a lane, times an activation's slope on the way
// where asked: rows are summed in runs, the runs' sums are added in order.
#pragma once
#include "ops/cuda/activation.cuh"
#include "ops/cuda/rows2d.cuh"
#include "ops/cuda/scratch.h"
#include "ops/op.h"

namespace brim::ops {

constexpr int kSumThreads = 256, kSumWarps = kSumThreads / 32;

// Sums of 32 * kWidth columns over a run of rows: each warp takes every eighth row, the warps' shares are added in
// order. With an activation x is multiplied by its slope at `gate` (relu, tanh: its output) first, and stored.
template <class Elem, int kWidth, Activation kGate>
__global__ void __launch_bounds__(kSumThreads)
    column_sums_kernel(Elem* x, int64_t lane_stride, int64_t ld, const Elem* gate, int64_t gate_lane_stride,
                       int64_t ld_gate, int T, int N, int rows_per_block, float* partials) {
  __shared__ float shares[kSumWarps][32 * kWidth];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32,
            column = (static_cast<int>(blockIdx.x) * 32 + lane) * kWidth;
  const int64_t begin = static_cast<int64_t>(blockIdx.y) * rows_per_block,
                end = min(static_cast<int64_t>(T), begin + rows_per_block);
  x += blockIdx.z * lane_stride;
  float sum[kWidth] = {};
  if (column < N)
    for (int64_t t = begin + warp; t < end; t += kSumWarps) {
      float f[kWidth];
      load_piece<kWidth>(x + t * ld + column, f);
      if constexpr (kGate != Activation::none) {
        float g[kWidth];
        load_piece<kWidth>(gate + blockIdx.z * gate_lane_stride + t * ld_gate + column, g);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          if constexpr (kGate == Activation::relu)
            f[i] = g[i] > 0.0f ? f[i] : 0.0f;
          else
            f[i] *= activation_slope<kGate, Elem>(g[i]);
        }
        store_piece<kWidth>(x + t * ld + column, f);
      }
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sum[i] += f[i];
    }
  if (partials == nullptr) return;  // the gate alone
#pragma unroll
  for (int i = 0; i < kWidth; ++i) shares[warp][lane * kWidth + i] = sum[i];
  __syncthreads();
  partials += static_cast<int64_t>(blockIdx.z) * gridDim.y * N;
  for (int c = threadIdx.x; c < 32 * kWidth; c += kSumThreads) {
    const int to = static_cast<int>(blockIdx.x) * 32 * kWidth + c;
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < kSumWarps; ++w) total += shares[w][c];
    if (to < N) partials[static_cast<int64_t>(blockIdx.y) * N + to] = total;
  }
}
// to[c] (+)= the sum of `count` rows of partials; blockIdx.y is the lane.
static __global__ void __launch_bounds__(128)
    add_rows_kernel(const float* partials, int count, int64_t n, float* to, int64_t lane_stride, bool accumulate) {
  const int64_t c = static_cast<int64_t>(blockIdx.x) * 128 + threadIdx.x;
  if (c >= n) return;
  partials += blockIdx.y * count * n;
  to += blockIdx.y * lane_stride;
  float sum = 0.0f;
  for (int i = 0; i < count; ++i) sum += partials[i * n + c];
  to[c] = accumulate ? to[c] + sum : sum;
}

// A matrix, or one a lane.
template <class Elem>
struct SumOperand {
  Elem* data;
  int64_t lane_stride, ld;
};

// sums[g, c] (+)= the sum over rows of x[g, row, c]; x is first multiplied by the slope at `gate` where that is given.
// Sums may be null.
template <Activation kGate, class Elem>
void sum_columns_cuda(device::CudaStream& s, SumOperand<Elem> x, SumOperand<const Elem> gate, int64_t lanes, int64_t T,
                      int64_t N, bool wide, float* partials, float* sums, int64_t sums_lane_stride, bool accumulate) {
  const int64_t blocks = cuda_column_partials(T), rows = (T + blocks - 1) / blocks;
  if (sums == nullptr) partials = nullptr;
  const auto run = [&](auto width) {
    constexpr int kWidth = decltype(width)::value;
    device::launch<column_sums_kernel<Elem, kWidth, kGate>>(
        s, dim3(device::blocks_for(N, 32 * kWidth), static_cast<unsigned>(blocks), static_cast<unsigned>(lanes)),
        dim3(kSumThreads), x.data, x.lane_stride, x.ld, gate.data, gate.lane_stride, gate.ld, static_cast<int>(T),
        static_cast<int>(N), static_cast<int>(rows), partials);
  };
  if (wide)
    run(std::integral_constant<int, 8>{});
  else
    run(std::integral_constant<int, 1>{});
  if (sums != nullptr)
    device::launch<add_rows_kernel>(s, dim3(device::blocks_for(N, 128), static_cast<unsigned>(lanes)), dim3(128),
                                    partials, static_cast<int>(blocks), N, sums, sums_lane_stride, accumulate);
}

}  // namespace brim::ops
