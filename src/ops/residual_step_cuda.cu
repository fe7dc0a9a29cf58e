// SPDX-License-Identifier: Apache-2.0
// residual_step on CUDA: processes four elements at a time; L and F are multiples of four.
#include "ops/cuda/elem.cuh"
#include "ops/kernel_table.h"

namespace brim::ops {
namespace {

constexpr int kStepThreads = 256;

template <class Half>
__device__ __forceinline__ void store4(Half* p, float4 v) {
  if constexpr (std::is_same_v<Half, float>)
    *reinterpret_cast<float4*>(p) = v;
  else
    *reinterpret_cast<uint2*>(p) = make_uint2(pack2<Half>(v.x, v.y), pack2<Half>(v.z, v.w));
}
__device__ __forceinline__ float4 masked(float4 v, uchar4 mask) {
  return make_float4(mask.x != 0 ? v.x : 0.0f, mask.y != 0 ? v.y : 0.0f, mask.z != 0 ? v.z : 0.0f,
                     mask.w != 0 ? v.w : 0.0f);
}

// Half is float if no rounded copy is needed.
template <class Half>
__global__ void __launch_bounds__(kStepThreads)
    residual_step_kernel(const float* r, const float* o, const uint8_t* mask, float* next, Half* half, float* f,
                         int64_t rows, int L, int F, bool add) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kStepThreads + threadIdx.x;
  const int pieces = (L + F) / 4;
  if (i >= rows * pieces) return;
  const int64_t row = i / pieces;
  const int col = static_cast<int>(i - row * pieces) * 4;
  const float4 v = *reinterpret_cast<const float4*>(o + row * (L + F) + col);
  if (col >= L) {
    float4* to = reinterpret_cast<float4*>(f + row * F + col - L);
    if (add) {
      const float4 was = *to;
      *to = make_float4(was.x + v.x, was.y + v.y, was.z + v.z, was.w + v.w);
    } else {
      *to = v;
    }
    return;
  }
  if (next == nullptr) return;
  const int64_t at = row * L + col;
  const float4 was = *reinterpret_cast<const float4*>(r + at);
  const float4 now = masked(make_float4(was.x - v.x, was.y - v.y, was.z - v.z, was.w - v.w),
                            *reinterpret_cast<const uchar4*>(mask + at));
  *reinterpret_cast<float4*>(next + at) = now;
  if constexpr (!std::is_same_v<Half, float>) store4(half + at, now);
}

template <class Elem>
__global__ void __launch_bounds__(kStepThreads)
    residual_step_grad_kernel(float* d_r, const float* d_f, const uint8_t* mask, Elem* d_o, int64_t rows, int L, int F,
                              bool last) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kStepThreads + threadIdx.x;
  const int pieces = (L + F) / 4;
  if (i >= rows * pieces) return;
  const int64_t row = i / pieces;
  const int col = static_cast<int>(i - row * pieces) * 4;
  Elem* to = d_o + row * (L + F) + col;
  if (col >= L) {
    store4(to, *reinterpret_cast<const float4*>(d_f + row * F + col - L));
    return;
  }
  const int64_t at = row * L + col;
  const float4 d =
      last ? make_float4(0.0f, 0.0f, 0.0f, 0.0f)
           : masked(*reinterpret_cast<const float4*>(d_r + at), *reinterpret_cast<const uchar4*>(mask + at));
  *reinterpret_cast<float4*>(d_r + at) = d;
  store4(to, make_float4(-d.x, -d.y, -d.z, -d.w));
}

void check_fours(const char* op, int64_t L, int64_t F) {
  BRIM_CHECK(L % 4 == 0 && F % 4 == 0, "{}: {} points and {} of forecast, must be multiples of 4", op, L, F);
}

}  // namespace

void residual_step_cuda(device::Stream& stream, const ResidualStepArgs& a) {
  cuda_op(stream, "residual_step", [&](device::CudaStream& s) {
    const int64_t rows = a.r.rows() * a.r.dim[1], L = a.r.cols(), F = a.f.cols();
    check_fours("residual_step", L, F);
    const auto run = [&](auto tag) {
      using Half = typename decltype(tag)::type;
      device::launch<residual_step_kernel<Half>>(
          s, dim3(device::blocks_for(rows * (L + F) / 4, kStepThreads)), dim3(kStepThreads), a.r.as<float>(),
          a.o.as<float>(), a.mask.as<uint8_t>(), a.r_next.as<float>(), static_cast<Half*>(a.r_half.data),
          a.f.as<float>(), rows, static_cast<int>(L), static_cast<int>(F), a.f_write == GradWrite::accumulate);
    };
    if (a.r_half)
      dispatch_elem(a.r_half.dtype, run);
    else
      run(ElemTag<float>{});
  });
}

void residual_step_grad_cuda(device::Stream& stream, const ResidualStepGradArgs& a) {
  cuda_op(stream, "residual_step_grad", [&](device::CudaStream& s) {
    const int64_t rows = a.d_r.rows() * a.d_r.dim[1], L = a.d_r.cols(), F = a.d_f.cols();
    check_fours("residual_step_grad", L, F);
    dispatch_elem(a.d_o.dtype, [&](auto tag) {
      using Elem = typename decltype(tag)::type;
      device::launch<residual_step_grad_kernel<Elem>>(s, dim3(device::blocks_for(rows * (L + F) / 4, kStepThreads)),
                                                      dim3(kStepThreads), a.d_r.as<float>(), a.d_f.as<float>(),
                                                      a.mask.as<uint8_t>(), static_cast<Elem*>(a.d_o.data), rows,
                                                      static_cast<int>(L), static_cast<int>(F), a.last);
    });
  });
}

}  // namespace brim::ops
