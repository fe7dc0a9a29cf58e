// SPDX-License-Identifier: Apache-2.0
// layer_norm on CUDA: reads x and the residual once, writes y (and an fp8 copy for the next GEMM) once.
#include "ops/cuda/norm.cuh"
#include "ops/kernel_table.h"

namespace brim::ops {
namespace {

template <class Elem, int kVec, int kGroup, bool kTrain>
__global__ void __launch_bounds__(kNormThreads)
    layer_norm_kernel(const Elem* x, int64_t ldx, const Elem* residual, int64_t ld_residual, int T, int H,
                      NormOutput<Elem> out, DropoutMask drop) {
  constexpr int kRows = kNormThreads / 32 / kGroup;
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kRows + threadIdx.x / (32 * kGroup);
  const bool valid = r < T;
  if (kGroup == 1 && !valid) return;  // longer rows meet at a block barrier
  NormRow<kVec, kGroup> row;
  row.lane = threadIdx.x % (32 * kGroup);
  row.pieces = H / 8;
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
  normalise_and_store<Elem, kVec, kGroup, kTrain>(row, r, valid, out, DropoutMask{});
}

}  // namespace

void layer_norm_cuda(device::Stream& stream, const LayerNormArgs& a) {
  cuda_op(stream, "layer_norm", [&](device::CudaStream& s) {
    const int64_t T = a.x.rows(), H = a.x.cols();
    for (const auto& [name, view] : {std::pair{"x", a.x},
                                     {"residual", a.residual},
                                     {"gamma", a.gamma},
                                     {"beta", a.beta},
                                     {"y", a.y},
                                     {"sum", a.sum},
                                     {"y_fp8", a.y_fp8}})
      check_norm_view("layer_norm", name, view);
    const bool train = a.sum || a.mean || a.rstd || a.dropout.on();
    dispatch_elem(a.x.dtype, [&](auto tag) {
      using Elem = typename decltype(tag)::type;
      const NormOutput<Elem> out = norm_output<Elem>(a, H);
      dispatch_norm("layer_norm", H, [&](auto shape) {
        using Shape = decltype(shape);
        const dim3 grid(device::blocks_for(T, kNormThreads / 32 / Shape::group)), block(kNormThreads);
        const auto *x = static_cast<const Elem*>(a.x.data), *residual = static_cast<const Elem*>(a.residual.data);
        if (train)
          device::launch<layer_norm_kernel<Elem, Shape::vec, Shape::group, true>>(
              s, grid, block, x, a.x.ld(), residual, a.residual.ld(), static_cast<int>(T), static_cast<int>(H), out,
              dropout_mask(a.dropout));
        else
          device::launch<layer_norm_kernel<Elem, Shape::vec, Shape::group, false>>(
              s, grid, block, x, a.x.ld(), residual, a.residual.ld(), static_cast<int>(T), static_cast<int>(H), out,
              DropoutMask{});
      });
    });
  });
}

}  // namespace brim::ops
