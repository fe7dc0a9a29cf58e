// SPDX-License-Identifier: Apache-2.0
// linear for few rows. A block computes 8 or 16 outputs of up to kBlockRows rows: its warps divide K; each holds its
// part of W in registers, loaded before the previous kernel ends (launch_chained), and multiplies the rows as they
// arrive from the cache; partial sums are combined in shared memory. Both operands are read 16 bytes per lane: lane
// t of a quad has elements 8t to 8t + 7 of a piece of 32, for x and W alike, and the order in which a tensor core uses
// them does not affect the sum.
#include "ops/cuda/activation.cuh"
#include "ops/cuda/linear_thin.h"
#include "ops/cuda/rows2d.cuh"

namespace brim::ops {

using tensor::DType;

namespace {

constexpr int kPiece = 32;      // elements of K multiplied by a warp at once
constexpr int kStepRows = 32;   // rows with sums in registers at the same time
constexpr int kBlockRows = 64;  // rows per block, step by step
constexpr int kMostK = 4096;
// With more rows the library is faster. A tweet through RoBERTa-base on an H200 takes 0.31 ms this way and 0.38 with
// the library, a text of 33 to 48 tokens 0.43 this way and 0.39 with the library.
constexpr int kThinRows = 32;

struct ThinProblem {
  const void *x, *w, *bias, *residual;  // bias and residual may be null
  void* y;
  int64_t ldx, ldw, ld_residual, ldy;
  int T, N, K;
  Activation activation;
};

template <class Elem, int kWarps, int kPieces, int kTiles>
__global__ void __launch_bounds__(32 * kWarps) thin_kernel(const ThinProblem p) {
  constexpr int kColumns = 8 * kTiles, kThreads = 32 * kWarps;
  static_assert(kThreads % (kColumns / 2) == 0);
  __shared__ float parts[kWarps][kStepRows][kColumns + 2];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane >> 2, t = lane & 3;
  const int n0 = static_cast<int>(blockIdx.x) * kColumns;
  const auto* w = static_cast<const Elem*>(p.w);
  const auto* x = static_cast<const Elem*>(p.x);
  uint4 weights[kTiles][kPieces];
#pragma unroll
  for (int u = 0; u < kPieces; ++u) {
    const int k = (u * kWarps + warp) * kPiece + 8 * t;
#pragma unroll
    for (int j = 0; j < kTiles; ++j)
      weights[j][u] =
          k < p.K && n0 + 8 * j + g < p.N ? load_weights16(w + (n0 + 8 * j + g) * p.ldw + k) : make_uint4(0, 0, 0, 0);
  }
  // All sums of a thread belong to two outputs.
  const int column = static_cast<int>(threadIdx.x) % (kColumns / 2) * 2, n = n0 + column;
  float2 bias = make_float2(0.0f, 0.0f);
  if (p.bias != nullptr && n < p.N)
    bias = unpack2<Elem>(*reinterpret_cast<const uint32_t*>(static_cast<const Elem*>(p.bias) + n));
  let_next_begin();
  wait_for_previous();
  const int first = static_cast<int>(blockIdx.y) * kBlockRows, end = min(p.T, first + kBlockRows);
  for (int row = first; row < end; row += kStepRows) {
    float c[2][kTiles][4] = {};
#pragma unroll
    for (int u = 0; u < kPieces; ++u) {
      if ((u * kWarps + warp) * kPiece >= p.K) break;
      const int k = (u * kWarps + warp) * kPiece + 8 * t;
      uint4 rows[2][2];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        rows[i / 2][i % 2] = k < p.K ? *reinterpret_cast<const uint4*>(x + min(row + 8 * i + g, p.T - 1) * p.ldx + k)
                                     : make_uint4(0, 0, 0, 0);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint4 &upper = rows[i][0], &lower = rows[i][1];
        const uint32_t a[2][4] = {{upper.x, lower.x, upper.y, lower.y}, {upper.z, lower.z, upper.w, lower.w}};
#pragma unroll
        for (int j = 0; j < kTiles; ++j) {
          mma_16816<Elem>(c[i][j], a[0], weights[j][u].x, weights[j][u].y);
          mma_16816<Elem>(c[i][j], a[1], weights[j][u].z, weights[j][u].w);
        }
      }
    }
    if (row > first) __syncthreads();  // the sums of the previous rows have been read
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < kTiles; ++j)
#pragma unroll
        for (int h = 0; h < 2; ++h)
          *reinterpret_cast<float2*>(&parts[warp][16 * i + 8 * h + g][8 * j + 2 * t]) =
              make_float2(c[i][j][2 * h], c[i][j][2 * h + 1]);
    __syncthreads();
    for (int at = threadIdx.x; at < kStepRows * kColumns / 2; at += kThreads) {
      const int r = at / (kColumns / 2);
      if (row + r >= end || n >= p.N) continue;
      float2 v = bias;
#pragma unroll
      for (int i = 0; i < kWarps; ++i) {
        const float2 part = *reinterpret_cast<const float2*>(&parts[i][r][column]);
        v.x += part.x;
        v.y += part.y;
      }
      v.x = activated_as<Elem>(p.activation, v.x);
      v.y = activated_as<Elem>(p.activation, v.y);
      if (p.residual != nullptr) {
        const float2 other = unpack2<Elem>(
            *reinterpret_cast<const uint32_t*>(static_cast<const Elem*>(p.residual) + (row + r) * p.ld_residual + n));
        v.x += other.x;
        v.y += other.y;
      }
      *reinterpret_cast<uint32_t*>(static_cast<Elem*>(p.y) + (row + r) * p.ldy + n) = pack2<Elem>(v.x, v.y);
    }
  }
}

bool pairs_aligned(const tensor::TensorView& v) {
  return !v || (reinterpret_cast<uintptr_t>(v.data) % 4 == 0 && (v.rank < 2 || v.rows() < 2 || v.ld() % 2 == 0));
}

// Every block reads all rows, so it computes 16 outputs if 8 would need more blocks than there are multiprocessors.
// Sixteen warps for large K: with eight a text took 6 % longer.
template <class Elem, int kWarps, int kPieces>
void launch_pieces(device::CudaStream& s, const ThinProblem& p) {
  const unsigned steps = device::blocks_for(p.T, kBlockRows);
  const dim3 block(32 * kWarps);
  if (p.N > 8 * s.info().sm_count)
    device::launch_chained<thin_kernel<Elem, kWarps, kPieces, 2>>(s, dim3(device::blocks_for(p.N, 16), steps), block,
                                                                  p);
  else
    device::launch_chained<thin_kernel<Elem, kWarps, kPieces, 1>>(s, dim3(device::blocks_for(p.N, 8), steps), block, p);
}

}  // namespace

bool is_thin(const device::CudaStream& s, const LinearArgs& a) {
  const bool half = a.x.dtype == DType::f16 || (a.x.dtype == DType::bf16 && s.info().bf16);
  return half && (a.x.rows() <= kThinRows || s.spares_library()) && s.algorithm_tokens() == 0 &&
         a.y.dtype == a.x.dtype && a.w.K % 8 == 0 && a.w.K <= kMostK && a.w.N % 8 == 0 && eight_wide(a.x) &&
         eight_wide(a.w.data) && pairs_aligned(a.y) && pairs_aligned(a.bias) && pairs_aligned(a.residual);
}

void launch_thin(device::CudaStream& s, const LinearArgs& a) {
  const ThinProblem p{a.x.data,
                      a.w.data.data,
                      a.bias.data,
                      a.residual.data,
                      a.y.data,
                      a.x.ld(),
                      a.w.data.ld(),
                      a.residual.ld(),
                      a.y.ld(),
                      static_cast<int>(a.x.rows()),
                      static_cast<int>(a.w.N),
                      static_cast<int>(a.w.K),
                      a.activation};
  const auto launch = [&](auto tag) {
    using Elem = typename decltype(tag)::type;
    if (a.w.K <= 1024)
      launch_pieces<Elem, 8, 4>(s, p);
    else if (a.w.K <= 3072)
      launch_pieces<Elem, 16, 6>(s, p);
    else
      launch_pieces<Elem, 16, 8>(s, p);
  };
  if (a.x.dtype == DType::f16)
    launch(ElemTag<__half>{});
  else
    launch(ElemTag<__nv_bfloat16>{});
}

}  // namespace brim::ops
