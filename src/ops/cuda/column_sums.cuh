// SPDX-License-Identifier: Apache-2.0
// Column sums in a fixed order (bias gradients), for one matrix or one per lane, optionally multiplied by an
// activation's slope: rows are summed in runs, then the sums of the runs are added in order.
#pragma once
#include "ops/cuda/activation.cuh"
#include "ops/cuda/rows2d.cuh"
#include "ops/cuda/scratch.h"
#include "ops/op.h"

namespace brim::ops {

constexpr int kSumThreads = 256, kSumWarps = kSumThreads / 32;

// Multiplies d by the activation's slope at g, which is its input, or its output (slope_reads_output). With kActivates,
// g is always the input and becomes the output.
template <class Elem, Activation kGate, bool kActivates, int kWidth>
__device__ __forceinline__ void gate_piece(float (&d)[kWidth], float (&g)[kWidth]) {
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    if constexpr (kActivates && slope_reads_output(kGate))  // rounded as it will be stored
      g[i] = to_f32(from_f32<Elem>(activated<kGate, Elem>(g[i])));
    if constexpr (kGate == Activation::relu) {
      d[i] = g[i] > 0.0f ? d[i] : 0.0f;
    } else if constexpr (kActivates && !slope_reads_output(kGate)) {
      const ActivatedWithSlope both = activated_with_slope<kGate, Elem>(g[i]);
      d[i] *= both.slope;
      g[i] = both.value;
    } else {
      d[i] *= activation_slope<kGate, Elem>(g[i]);
    }
  }
}

// Pieces of rows in flight to a thread through its own shared memory: the compiler moves loads into registers down to
// their use, so nothing would be in flight while a piece is processed.
template <class Elem, int kOperands>
struct PieceRing {
  static constexpr int kParts = sizeof(Elem) / 2;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  static constexpr int kRows = 1;  // copies are not asynchronous; more blocks fit instead
#else
  static constexpr int kRows = 4 / kParts;
#endif
  uint4 at[kRows][kOperands][kParts][kSumThreads];

  __device__ __forceinline__ void fetch(int n, int operand, const Elem* from) {
#pragma unroll
    for (int p = 0; p < kParts; ++p)
      copy_async16(shared_address(&at[n % kRows][operand][p][threadIdx.x]), from + p * 16 / sizeof(Elem));
  }
  __device__ __forceinline__ void take(int n, int operand, float (&f)[8]) {
    uint4 words[kParts];
#pragma unroll
    for (int p = 0; p < kParts; ++p) words[p] = load_shared16(shared_address(&at[n % kRows][operand][p][threadIdx.x]));
    Raw8<Elem> raw;
    memcpy(static_cast<void*>(&raw), words, sizeof raw);
    unpack8<Elem>(raw, f);
  }
};

// Sums of 32 * kWidth columns over a run of rows: each warp processes every eighth row with a few in flight; the
// sums of the warps are added in order. With an activation, x is first multiplied by its slope at `gate` and stored
// (gate_piece). With kActivates, so is the activation's output.
template <class Elem, int kWidth, Activation kGate, bool kActivates>
__global__ void __launch_bounds__(kSumThreads)
    column_sums_kernel(Elem* x, int64_t lane_stride, int64_t ld, const Elem* gate, int64_t gate_lane_stride,
                       int64_t ld_gate, Elem* active, int64_t ld_active, int T, int N, int rows_per_block,
                       float* partials) {
  __shared__ float shares[kSumWarps][32 * kWidth];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32,
            column = (static_cast<int>(blockIdx.x) * 32 + lane) * kWidth;
  const int64_t begin = static_cast<int64_t>(blockIdx.y) * rows_per_block,
                end = min(static_cast<int64_t>(T), begin + rows_per_block);
  x += blockIdx.z * lane_stride + column;
  if constexpr (kGate != Activation::none) gate += blockIdx.z * gate_lane_stride + column;
  if constexpr (kActivates) active += column;
  float sum[kWidth] = {};
  if constexpr (kGate != Activation::none && kWidth == 8) {
    using Ring = PieceRing<Elem, 2>;
    __shared__ Ring ring;
    const int64_t first = begin + warp;
    const int rows = column < N && first < end ? static_cast<int>((end - first - 1) / kSumWarps) + 1 : 0;
    const Elem *next = x + first * ld, *next_gate = gate + first * ld_gate;
    const auto fetch = [&](int n) {
      if (n < rows) {
        ring.fetch(n, 0, next);
        ring.fetch(n, 1, next_gate);
        next += kSumWarps * ld;
        next_gate += kSumWarps * ld_gate;
      }
      copy_async_commit();
    };
#pragma unroll
    for (int n = 0; n < Ring::kRows; ++n) fetch(n);
    x += first * ld;
    if constexpr (kActivates) active += first * ld_active;
    for (int n = 0; n < rows; ++n) {
      float f[8], g[8];
      copy_async_wait<Ring::kRows - 1>();
      ring.take(n, 0, f);
      ring.take(n, 1, g);
      gate_piece<Elem, kGate, kActivates>(f, g);
      store8(x, f);
      x += kSumWarps * ld;
      if constexpr (kActivates) {
        store8(active, g);
        active += kSumWarps * ld_active;
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[i] += f[i];
      fetch(n + Ring::kRows);
    }
  } else if (column < N) {
    constexpr int kAhead = kGate == Activation::none ? 4 : 2;
    for (int64_t first = begin + warp; first < end; first += kSumWarps * kAhead) {
      float f[kAhead][kWidth], g[kAhead][kWidth];
#pragma unroll
      for (int r = 0; r < kAhead; ++r) {
        const int64_t t = min(first + r * kSumWarps, end - 1);
        load_piece<kWidth>(x + t * ld, f[r]);
        if constexpr (kGate != Activation::none) load_piece<kWidth>(gate + t * ld_gate, g[r]);
      }
#pragma unroll
      for (int r = 0; r < kAhead; ++r) {
        const int64_t t = first + r * kSumWarps;
        if (t >= end) break;
        if constexpr (kGate != Activation::none) {
          gate_piece<Elem, kGate, kActivates>(f[r], g[r]);
          store_piece<kWidth>(x + t * ld, f[r]);
        }
#pragma unroll
        for (int i = 0; i < kWidth; ++i) sum[i] += f[r][i];
      }
    }
  }
  if (partials == nullptr) return;  // gate only
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
// Sum of `count` numbers with stride `ld`, for the block's first warp: each warp adds a run of them (sequentially, 256
// took 20 us), then the sums of the runs are added in order. Each lane is a column; lanes that are not `real` read
// nothing.
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
// to[c] (+)= sum of `count` rows of partials; blockIdx.y is the lane.
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

// One matrix, or one per lane.
template <class Elem>
struct SumOperand {
  Elem* data;
  int64_t lane_stride, ld;
};

// sums[g, c] (+)= sum over rows of x[g, row, c]; x is first multiplied by the slope at `gate`, if given. Sums may be
// null. kActivates: as in the kernel, for one lane and wide views, into `active`.
template <Activation kGate, class Elem, bool kActivates = false>
void sum_columns_cuda(device::CudaStream& s, SumOperand<Elem> x, SumOperand<const Elem> gate, int64_t lanes, int64_t T,
                      int64_t N, bool wide, float* partials, float* sums, int64_t sums_lane_stride, bool accumulate,
                      SumOperand<Elem> active = {}) {
  // Rows per block such that all warps have the same number of iterations.
  const int64_t blocks = cuda_column_partials(T), turns = (T + blocks * kSumWarps - 1) / (blocks * kSumWarps),
                rows = turns * kSumWarps;
  if (sums == nullptr) partials = nullptr;
  const auto run = [&](auto width) {
    constexpr int kWidth = decltype(width)::value;
    device::launch<column_sums_kernel<Elem, kWidth, kGate, kActivates>>(
        s, dim3(device::blocks_for(N, 32 * kWidth), static_cast<unsigned>(blocks), static_cast<unsigned>(lanes)),
        dim3(kSumThreads), x.data, x.lane_stride, x.ld, gate.data, gate.lane_stride, gate.ld, active.data, active.ld,
        static_cast<int>(T), static_cast<int>(N), static_cast<int>(rows), partials);
  };
  if constexpr (kActivates)
    run(std::integral_constant<int, 8>{});
  else if (wide)
    run(std::integral_constant<int, 8>{});
  else
    run(std::integral_constant<int, 1>{});
  if (sums != nullptr) add_rows_cuda(s, partials, blocks, N, lanes, sums, sums_lane_stride, accumulate);
}

}  // namespace brim::ops
