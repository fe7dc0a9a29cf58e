// SPDX-License-Identifier: Apache-2.0
// layer_norm on CUDA: reads x and the residual once, writes y (and fp8 copies for the next GEMM) once.
#include "ops/cuda/fp8_tile.cuh"
#include "ops/cuda/norm.cuh"
#include "ops/kernel_table.h"

namespace brim::ops {
namespace {

// Input of the norm: x with dropout, and the residual; rows of H elements.
template <class Elem>
struct NormInput {
  const Elem *x, *residual;  // residual may be null
  int64_t ldx, ld_residual;
  int T, H;
  DropoutMask drop;
};

template <class Elem, int kVec, int kGroup, bool kTrain>
__device__ __forceinline__ void load_sum(NormRow<kVec, kGroup>& row, int64_t r, bool valid, const NormInput<Elem>& in) {
  const Elem *x = in.x, *residual = in.residual;
  const int64_t ldx = in.ldx, ld_residual = in.ld_residual;
  const DropoutMask& drop = in.drop;
  Raw8<Elem> a[kVec], b[kVec];
#pragma unroll
  for (int i = 0; i < kVec; ++i)
    if (row.has(i) && valid) {
      a[i] = stream_raw8(x + r * ldx + row.column(i));
      if (residual != nullptr) b[i] = stream_raw8(residual + r * ld_residual + row.column(i));
    }
#pragma unroll
  for (int i = 0; i < kVec; ++i)
    if (row.has(i) && valid) {
      unpack8<Elem>(a[i], row.v[i]);
      if constexpr (kTrain)
        if (drop.threshold != 0) drop8(drop, static_cast<uint64_t>(r), static_cast<uint32_t>(row.column(i)), row.v[i]);
      if (residual != nullptr) {
        float other[8];
        unpack8<Elem>(b[i], other);
#pragma unroll
        for (int j = 0; j < 8; ++j) row.v[i][j] += other[j];
      }
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j) row.v[i][j] = 0.0f;
    }
}

template <class Elem, int kVec, int kGroup, bool kTrain>
__global__ void __launch_bounds__(kNormThreads) layer_norm_kernel(NormInput<Elem> in, NormOutput<Elem> out) {
  constexpr int kRows = kNormThreads / 32 / kGroup;
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kRows + threadIdx.x / (32 * kGroup);
  const bool valid = r < in.T;
  let_next_begin();
  if (blockIdx.x == 0) {  // prefetch into the cache
    for (int c = 64 * static_cast<int>(threadIdx.x); c < in.H; c += 64 * kNormThreads) {
      prefetch_weights(out.gamma + c);
      if (out.beta != nullptr) prefetch_weights(out.beta + c);
    }
  }
  wait_for_previous();
  if (kGroup == 1 && !valid) return;  // longer rows use a block barrier
  NormRow<kVec, kGroup> row;
  row.lane = threadIdx.x % (32 * kGroup);
  row.pieces = in.H / 8;
  load_sum<Elem, kVec, kGroup, kTrain>(row, r, valid, in);
  normalise_and_store<Elem, kVec, kGroup, kTrain>(row, r, valid, out, DropoutMask{});
}

// With e4m3 copies: a block processes 32 rows, four per warp, so that columns are written in whole sectors.
template <int kVec>
__global__ void __launch_bounds__(kNormThreads, kVec < 4 ? 3 : 2)
    layer_norm_fp8_kernel(NormInput<__nv_bfloat16> in, NormOutput<__nv_bfloat16> out, Fp8Out fp8) {
  constexpr int kRows = kNormThreads / 32;
  __shared__ Fp8Tile<kVec * 256, kNormThreads> tile;
  const int first = static_cast<int>(blockIdx.x) * kFp8TileRows;
  NormRow<kVec, 1> row;
  row.lane = threadIdx.x % 32;
  row.pieces = in.H / 8;
  const float scale = *fp8.scale;
  float most = 0.0f;
#pragma unroll 1  // unrolling would halve the blocks per multiprocessor
  for (int at = static_cast<int>(threadIdx.x) / 32; at < kFp8TileRows; at += kRows) {
    const int64_t r = first + at;
    if (r < in.T) {
      load_sum<__nv_bfloat16, kVec, 1, true>(row, r, true, in);
      normalise_and_store<__nv_bfloat16, kVec, 1, true>(
          row, r, true, out, DropoutMask{}, [&](int column, const float(&y)[8]) {
            const uint2 codes = codes_of<__nv_bfloat16>(y, scale, most);
            if (fp8.rows != nullptr) *reinterpret_cast<uint2*>(fp8.rows + r * fp8.ld_rows + column) = codes;
            tile.put(at, column, codes);
          });
    } else {
#pragma unroll
      for (int i = 0; i < kVec; ++i)
        if (row.has(i)) tile.put(at, row.column(i), make_uint2(0, 0));
    }
  }
  __syncthreads();
  if (fp8.columns != nullptr) tile.leave(fp8, first, in.H);
  merge_most<kNormThreads>(fp8, most);
}

}  // namespace

void layer_norm_cuda(device::Stream& stream, const LayerNormArgs& a) {
  cuda_op(stream, "layer_norm", [&](device::CudaStream& s) {
    const int64_t T = a.x.rows(), H = a.x.cols();
    for (const auto& [name, view] : NamedViews{{"x", a.x},
                                               {"residual", a.residual},
                                               {"gamma", a.gamma},
                                               {"beta", a.beta},
                                               {"y", a.y},
                                               {"sum", a.sum},
                                               {"y_fp8", a.y_fp8}})
      check_norm_view("layer_norm", name, view);
    const bool train = a.sum || a.mean || a.rstd || a.dropout.on();
    check_fp8_out("layer_norm", a.train_fp8);
    bool copied = !a.train_fp8;
    dispatch_elem(a.x.dtype, [&](auto tag) {
      using Elem = typename decltype(tag)::type;
      const NormOutput<Elem> out = norm_output<Elem>(a, H);
      dispatch_norm("layer_norm", H, [&](auto shape) {
        using Shape = decltype(shape);
        const dim3 grid(device::blocks_for(T, kNormThreads / 32 / Shape::group)), block(kNormThreads);
        const NormInput<Elem> in{static_cast<const Elem*>(a.x.data),
                                 static_cast<const Elem*>(a.residual.data),
                                 a.x.ld(),
                                 a.residual.ld(),
                                 static_cast<int>(T),
                                 static_cast<int>(H),
                                 dropout_mask(a.dropout)};
        if constexpr (std::is_same_v<Elem, __nv_bfloat16> && Shape::group == 1)
          if (a.train_fp8) {
            copied = true;
            device::launch<layer_norm_fp8_kernel<Shape::vec>>(s, dim3(device::blocks_for(T, kFp8TileRows)), block, in,
                                                              out, fp8_out(a.train_fp8, T));
            return;
          }
        if (train)
          device::launch_chained<layer_norm_kernel<Elem, Shape::vec, Shape::group, true>>(s, grid, block, in, out);
        else
          device::launch_chained<layer_norm_kernel<Elem, Shape::vec, Shape::group, false>>(s, grid, block, in, out);
      });
    });
    if (!copied) fp8_copy(stream, a.y, a.train_fp8);
  });
}

}  // namespace brim::ops
