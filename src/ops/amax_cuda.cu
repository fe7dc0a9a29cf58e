// SPDX-License-Identifier: Apache-2.0
// amax on CUDA: the maximum does not depend on order, so blocks combine with one atomic. Magnitudes compare like their
// bit patterns.
#include "ops/amax.h"
#include "ops/cuda/rows2d.cuh"
#include "ops/kernel_table.h"

namespace brim::ops {
namespace {

template <class Elem, int kWidth>
__global__ void __launch_bounds__(kElementThreads) amax_kernel(const Elem* x, int64_t ld, Extent e, int* most_bits) {
  __shared__ float tops[kElementThreads / 32];
  const int64_t per_row = e.cols / kWidth, pieces = e.rows * per_row;
  float most = 0.0f;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kElementThreads + threadIdx.x; i < pieces;
       i += static_cast<int64_t>(gridDim.x) * kElementThreads) {
    const int64_t row = e.rows == 1 ? 0 : i / per_row;
    float f[kWidth];
    load_piece<kWidth>(x + row * ld + (i - row * per_row) * kWidth, f);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) most = f[j] != f[j] ? INFINITY : fmaxf(most, fabsf(f[j]));
  }
  most = warp_max(most);
  if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = most;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int i = 1; i < kElementThreads / 32; ++i) most = fmaxf(most, tops[i]);
  atomicMax(most_bits, __float_as_int(most));
}

__global__ void __launch_bounds__(128)
    fp8_scale_kernel(const float* amax, int n, float margin, float* scale, float* inverse, int64_t ld_inverse) {
  const int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= n) return;
  scale[i] = fp8_scale_of(amax[i] * margin);
  if (inverse != nullptr) inverse[i * ld_inverse] = 1.0f / scale[i];
}

__global__ void __launch_bounds__(128)
    fp8_remember_kernel(float* amax, float* history, int64_t ld, int n, int first_gradient, float unit) {
  const int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= n) return;
  history += i * ld;
  const float most = amax[i];
  amax[i] = 0.0f;
  if (!(most < INFINITY)) return;
  for (int k = static_cast<int>(kFp8History) - 1; k > 0; --k) history[k] = history[k - 1];
  history[0] = i < first_gradient ? most : most / unit;
}

__global__ void __launch_bounds__(128)
    fp8_delayed_scale_kernel(const float* history, int64_t ld, int n, int first_gradient, float unit, float margin,
                             float* scale, float* inverse, int64_t ld_inverse) {
  const int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= n) return;
  float most = 0.0f;
  for (int k = 0; k < static_cast<int>(kFp8History); ++k) most = fmaxf(most, history[i * ld + k]);
  scale[i] = fp8_scale_of(fp8_expected(most, i >= first_gradient, unit) * margin);
  if (inverse != nullptr) inverse[i * ld_inverse] = 1.0f / scale[i];
}

}  // namespace

void amax_cuda(device::Stream& stream, const AmaxArgs& a) {
  cuda_op(stream, "amax", [&](device::CudaStream& s) {
    const Extent e = extent_of(a.x);
    auto* most = reinterpret_cast<int*>(a.amax.as<float>());
    dispatch_elem(a.x.dtype, [&](auto tag) {
      using Elem = typename decltype(tag)::type;
      const auto* x = static_cast<const Elem*>(a.x.data);
      const auto grid = [&](int width) {
        return dim3(std::min(element_grid(e, width).x, static_cast<unsigned>(s.info().sm_count) * 8));
      };
      if (all_eight_wide(e, a.x))
        device::launch<amax_kernel<Elem, 8>>(s, grid(8), dim3(kElementThreads), x, a.x.ld(), e, most);
      else
        device::launch<amax_kernel<Elem, 1>>(s, grid(1), dim3(kElementThreads), x, a.x.ld(), e, most);
    });
  });
}

void fp8_scale_cuda(device::Stream& stream, const Fp8ScaleArgs& a) {
  cuda_op(stream, "fp8_scale", [&](device::CudaStream& s) {
    const int64_t n = a.amax.rows();
    launch<fp8_scale_kernel>(s, dim3(device::blocks_for(n, 128)), dim3(128), a.amax.as<float>(), static_cast<int>(n),
                             a.margin, a.scale.as<float>(), a.inverse.as<float>(), a.inverse.ld());
  });
}

void fp8_remember_cuda(device::Stream& stream, const Fp8RememberArgs& a) {
  cuda_op(stream, "fp8_remember", [&](device::CudaStream& s) {
    const int64_t n = a.amax.rows();
    launch<fp8_remember_kernel>(s, dim3(device::blocks_for(n, 128)), dim3(128), a.amax.as<float>(),
                                a.history.as<float>(), a.history.ld(), static_cast<int>(n),
                                static_cast<int>(a.first_gradient), a.unit);
  });
}

void fp8_delayed_scale_cuda(device::Stream& stream, const Fp8DelayedScaleArgs& a) {
  cuda_op(stream, "fp8_delayed_scale", [&](device::CudaStream& s) {
    const int64_t n = a.scale.rows();
    launch<fp8_delayed_scale_kernel>(s, dim3(device::blocks_for(n, 128)), dim3(128), a.history.as<float>(),
                                     a.history.ld(), static_cast<int>(n), static_cast<int>(a.first_gradient), a.unit,
                                     a.margin, a.scale.as<float>(), a.inverse.as<float>(), a.inverse.ld());
  });
}

}  // namespace brim::ops
