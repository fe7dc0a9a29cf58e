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

// Sums of 32 * kWidth columns over a run of rows: each warp takes every eighth row, a few of them in flight at a time;
// the warps' shares are added in order. With an activation x is multiplied by its slope at `gate` (relu, tanh: its
// output) first, and stored.
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
  constexpr int kAhead = kGate == Activation::none ? 4 : 2;
  float sum[kWidth] = {};
  if (column < N)
    for (int64_t first = begin + warp; first < end; first += kSumWarps * kAhead) {
      float f[kAhead][kWidth], g[kAhead][kWidth];
#pragma unroll
      for (int r = 0; r < kAhead; ++r) {
        const int64_t t = min(first + r * kSumWarps, end - 1);
        load_piece<kWidth>(x + t * ld + column, f[r]);
        if constexpr (kGate != Activation::none)
          load_piece<kWidth>(gate + blockIdx.z * gate_lane_stride + t * ld_gate + column, g[r]);
      }
#pragma unroll
      for (int r = 0; r < kAhead; ++r) {
        const int64_t t = first + r * kSumWarps;
        if (t >= end) break;
        if constexpr (kGate != Activation::none) {
#pragma unroll
          for (int i = 0; i < kWidth; ++i) {
            if constexpr (kGate == Activation::relu)
              f[r][i] = g[r][i] > 0.0f ? f[r][i] : 0.0f;
            else
              f[r][i] *= activation_slope<kGate, Elem>(g[r][i]);
          }
          store_piece<kWidth>(x + t * ld + column, f[r]);
        }
#pragma unroll
        for (int i = 0; i < kWidth; ++i) sum[i] += f[r][i];
      }
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
// The sum of `count` numbers that lie `ld` apart, for the block's first warp: each warp adds a run of them (one after
// another, 256 took 20 us), the runs' sums are added in order. Columns are lanes'; of those that are not `real` nothing
// is read.
__device__ __forceinline__ float add_column(const float* column, int count, int64_t ld, bool real) {
  __shared__ float shares[kSumWarps][32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, run = (count + kSumWarps - 1) / kSumWarps,
            end = min(count, (warp + 1) * run);
  float sum = 0.0f;
  if (real) {
#pragma unroll 8
    for (int i = warp * run; i < end; ++i) sum += column[i * ld];
  }
  shares[warp][lane] = sum;
  __syncthreads();
  sum = 0.0f;
#pragma unroll
  for (int w = 0; w < kSumWarps; ++w) sum += shares[w][lane];
  return sum;
}
// to[c] (+)= the sum of `count` rows of partials; blockIdx.y is the lane.
static __global__ void __launch_bounds__(kSumThreads)
    add_rows_kernel(const float* partials, int count, int64_t n, float* to, int64_t lane_stride, bool accumulate) {
  const int64_t c = static_cast<int64_t>(blockIdx.x) * 32 + threadIdx.x % 32;
  const float sum = add_column(partials + blockIdx.y * count * n + c, count, n, c < n);
  if (threadIdx.x >= 32 || c >= n) return;
  to += blockIdx.y * lane_stride;
  to[c] = accumulate ? to[c] + sum : sum;
}
inline void add_rows_cuda(device::CudaStream& s, const float* partials, int64_t count, int64_t n, int64_t lanes,
                          float* to, int64_t lane_stride, bool accumulate) {
  device::launch<add_rows_kernel>(s, dim3(device::blocks_for(n, 32), static_cast<unsigned>(lanes)), dim3(kSumThreads),
                                  partials, static_cast<int>(count), n, to, lane_stride, accumulate);
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
  if (sums != nullptr) add_rows_cuda(s, partials, blocks, N, lanes, sums, sums_lane_stride, accumulate);
}

}  // namespace brim::ops
