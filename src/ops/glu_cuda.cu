// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/activation.cuh"
#include "ops/cuda/rows2d.cuh"
#include "ops/kernel_table.h"

namespace brim::ops {
namespace {

template <class Elem, Activation kActivation, int kWidth>
__global__ void __launch_bounds__(kElementThreads)
    glu_kernel(const Elem* x, int64_t ldx, Elem* y, int64_t ldy, Extent e) {
  int64_t row, col;
  if (!piece_at<kWidth>(e, row, col)) return;
  float f[kWidth], gates[kWidth];
  load_piece<kWidth>(x + row * ldx + col, f);
  load_piece<kWidth>(x + row * ldx + e.cols + col, gates);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) f[i] = activated<kActivation, Elem>(f[i]) * gates[i];
  store_piece<kWidth>(y + row * ldy + col, f);
}

template <class Elem, Activation kActivation, int kWidth>
__global__ void __launch_bounds__(kElementThreads)
    glu_grad_kernel(const Elem* x, int64_t ldx, const Elem* d_y, int64_t ld_d_y, Elem* d_x, int64_t ld_d_x, Elem* y,
                    int64_t ldy, Extent e) {
  int64_t row, col;
  if (!piece_at<kWidth>(e, row, col)) return;
  float f[kWidth], gates[kWidth], d[kWidth];
  load_piece<kWidth>(x + row * ldx + col, f);
  load_piece<kWidth>(x + row * ldx + e.cols + col, gates);
  load_piece<kWidth>(d_y + row * ld_d_y + col, d);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const ActivatedWithSlope active = activated_with_slope<kActivation, Elem>(f[i]);
    const float upper = d[i];
    d[i] = upper * gates[i] * active.slope;
    f[i] = upper * active.value;
    gates[i] *= active.value;
  }
  store_piece<kWidth>(d_x + row * ld_d_x + col, d);
  store_piece<kWidth>(d_x + row * ld_d_x + e.cols + col, f);
  if (y != nullptr) store_piece<kWidth>(y + row * ldy + col, gates);
}

// Rows cannot be merged, because the halves of neighbouring rows are not adjacent.
template <class Run>
void launch_wide(Extent e, bool wide, Run&& run) {
  if (wide)
    run(std::integral_constant<int, 8>{}, element_grid(e, 8));
  else
    run(std::integral_constant<int, 1>{}, element_grid(e, 1));
}

}  // namespace

void glu_cuda(device::Stream& stream, const GluArgs& a) {
  cuda_op(stream, "glu", [&](device::CudaStream& s) {
    const Extent e{a.y.rows(), a.y.cols()};
    dispatch_elem(a.x.dtype, [&](auto tag) {
      using Elem = typename decltype(tag)::type;
      dispatch_activation(a.activation, [&](auto chosen) {
        launch_wide(e, all_eight_wide(e, a.x, a.y), [&](auto width, dim3 grid) {
          device::launch<glu_kernel<Elem, decltype(chosen)::value, decltype(width)::value>>(
              s, grid, dim3(kElementThreads), static_cast<const Elem*>(a.x.data), a.x.ld(),
              static_cast<Elem*>(a.y.data), a.y.ld(), e);
        });
      });
    });
  });
}

void glu_grad_cuda(device::Stream& stream, const GluGradArgs& a) {
  cuda_op(stream, "glu_grad", [&](device::CudaStream& s) {
    const Extent e{a.d_y.rows(), a.d_y.cols()};
    dispatch_elem(a.x.dtype, [&](auto tag) {
      using Elem = typename decltype(tag)::type;
      dispatch_activation(a.activation, [&](auto chosen) {
        launch_wide(e, all_eight_wide(e, a.x, a.d_y, a.d_x, a.y), [&](auto width, dim3 grid) {
          device::launch<glu_grad_kernel<Elem, decltype(chosen)::value, decltype(width)::value>>(
              s, grid, dim3(kElementThreads), static_cast<const Elem*>(a.x.data), a.x.ld(),
              static_cast<const Elem*>(a.d_y.data), a.d_y.ld(), static_cast<Elem*>(a.d_x.data), a.d_x.ld(),
              static_cast<Elem*>(a.y.data), a.y.ld(), e);
        });
      });
    });
  });
}

}  // namespace brim::ops
