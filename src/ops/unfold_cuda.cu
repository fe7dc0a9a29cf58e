// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/rows2d.cuh"
#include "ops/kernel_table.h"

namespace brim::ops {
namespace {

__device__ __forceinline__ bool same_sequence(const int32_t* positions, int64_t T, int64_t t, int offset) {
  const int64_t at = t + offset;
  return at >= 0 && at < T && positions[at] - positions[t] == offset;
}

// `e`: rows and columns of y.
template <class Elem>
__global__ void __launch_bounds__(kElementThreads)
    unfold_kernel(const Elem* x, int64_t ldx, const int32_t* positions, Elem* y, int64_t ldy, Extent e, int width) {
  int64_t t, col;
  if (!piece_at<1>(e, t, col)) return;
  const int offset = static_cast<int>(col % width) - width / 2;
  y[t * ldy + col] =
      same_sequence(positions, e.rows, t, offset) ? x[(t + offset) * ldx + col / width] : from_f32<Elem>(0.0f);
}

// `e`: rows and columns of d_x.
template <class Elem>
__global__ void __launch_bounds__(kElementThreads)
    unfold_grad_kernel(const Elem* d_y, int64_t ldy, const int32_t* positions, Elem* d_x, int64_t ldx, Extent e,
                       int width) {
  int64_t t, c;
  if (!piece_at<1>(e, t, c)) return;
  float sum = to_f32(d_x[t * ldx + c]);
  for (int i = 0; i < width; ++i) {
    const int offset = width / 2 - i;
    if (same_sequence(positions, e.rows, t, offset)) sum += to_f32(d_y[(t + offset) * ldy + c * width + i]);
  }
  d_x[t * ldx + c] = from_f32<Elem>(sum);
}

}  // namespace

void unfold_cuda(device::Stream& stream, const UnfoldArgs& a) {
  cuda_op(stream, "unfold", [&](device::CudaStream& s) {
    const Extent e{a.y.rows(), a.y.cols()};
    dispatch_elem(a.x.dtype, [&](auto tag) {
      using Elem = typename decltype(tag)::type;
      device::launch<unfold_kernel<Elem>>(s, element_grid(e, 1), dim3(kElementThreads),
                                          static_cast<const Elem*>(a.x.data), a.x.ld(), a.positions.as<int32_t>(),
                                          static_cast<Elem*>(a.y.data), a.y.ld(), e, static_cast<int>(a.width));
    });
  });
}

void unfold_grad_cuda(device::Stream& stream, const UnfoldGradArgs& a) {
  cuda_op(stream, "unfold_grad", [&](device::CudaStream& s) {
    const Extent e{a.d_x.rows(), a.d_x.cols()};
    dispatch_elem(a.d_x.dtype, [&](auto tag) {
      using Elem = typename decltype(tag)::type;
      device::launch<unfold_grad_kernel<Elem>>(
          s, element_grid(e, 1), dim3(kElementThreads), static_cast<const Elem*>(a.d_y.data), a.d_y.ld(),
          a.positions.as<int32_t>(), static_cast<Elem*>(a.d_x.data), a.d_x.ld(), e, static_cast<int>(a.width));
    });
  });
}

}  // namespace brim::ops
