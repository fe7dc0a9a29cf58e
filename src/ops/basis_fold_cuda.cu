// SPDX-License-Identifier: Apache-2.0
// basis_fold on CUDA: one thread per element of the result; a block covers columns of one row, so that the basis is
// read as a broadcast.
#include "ops/cuda/elem.cuh"
#include "ops/kernel_table.h"

namespace brim::ops {
namespace {

constexpr int kFoldThreads = 128;

struct FoldStrides {
  int64_t basis, basis_row, from, from_row, to, to_row;  // strides of a lane and of a row
};

// One row of the result: the sum over i of factors[i * step] * from[i, w].
__device__ __forceinline__ float fold(const float* factors, int64_t step, int count, const float* from, int64_t ld,
                                      int w) {
  float sum = 0.0f;
  for (int i = 0; i < count; ++i) sum = fmaf(factors[i * step], from[i * ld + w], sum);
  return sum;
}

template <class Elem>
__global__ void __launch_bounds__(kFoldThreads)
    basis_fold_kernel(const float* basis, const float* theta, Elem* v, FoldStrides s, int P, int W) {
  const int w = static_cast<int>(blockIdx.x) * kFoldThreads + threadIdx.x, n = blockIdx.y;
  const int64_t g = blockIdx.z;
  if (w >= W) return;
  v[g * s.to + n * s.to_row + w] =
      from_f32<Elem>(fold(basis + g * s.basis + n, s.basis_row, P, theta + g * s.from, s.from_row, w));
}
__global__ void __launch_bounds__(kFoldThreads)
    basis_fold_grad_kernel(const float* basis, const float* d_v, float* d_theta, FoldStrides s, int N, int W,
                           bool accumulate) {
  const int w = static_cast<int>(blockIdx.x) * kFoldThreads + threadIdx.x, p = blockIdx.y;
  const int64_t g = blockIdx.z;
  if (w >= W) return;
  float* to = d_theta + g * s.to + p * s.to_row + w;
  const float sum = fold(basis + g * s.basis + p * s.basis_row, 1, N, d_v + g * s.from, s.from_row, w);
  *to = accumulate ? *to + sum : sum;
}

dim3 fold_grid(int64_t W, int64_t rows, int64_t G) {
  return dim3(device::blocks_for(W, kFoldThreads), static_cast<unsigned>(rows), static_cast<unsigned>(G));
}

}  // namespace

void basis_fold_cuda(device::Stream& stream, const BasisFoldArgs& a) {
  cuda_op(stream, "basis_fold", [&](device::CudaStream& s) {
    const int64_t P = a.theta.dim[1], W = a.theta.cols();
    const FoldStrides strides{a.basis.stride[0], a.basis.stride[1], a.theta.stride[0],
                              a.theta.stride[1], a.v.stride[0],     a.v.stride[1]};
    dispatch_elem(a.v.dtype, [&](auto tag) {
      using Elem = typename decltype(tag)::type;
      device::launch<basis_fold_kernel<Elem>>(s, fold_grid(W, a.v.dim[1], a.v.rows()), dim3(kFoldThreads),
                                              a.basis.as<float>(), a.theta.as<float>(), static_cast<Elem*>(a.v.data),
                                              strides, static_cast<int>(P), static_cast<int>(W));
    });
  });
}

void basis_fold_grad_cuda(device::Stream& stream, const BasisFoldGradArgs& a) {
  cuda_op(stream, "basis_fold_grad", [&](device::CudaStream& s) {
    const int64_t P = a.d_theta.dim[1], W = a.d_theta.cols(), N = a.basis.cols();
    const FoldStrides strides{a.basis.stride[0], a.basis.stride[1],   a.d_v.stride[0],
                              a.d_v.stride[1],   a.d_theta.stride[0], a.d_theta.stride[1]};
    launch<basis_fold_grad_kernel>(s, fold_grid(W, P, a.d_theta.rows()), dim3(kFoldThreads), a.basis.as<float>(),
                                   a.d_v.as<float>(), a.d_theta.as<float>(), strides, static_cast<int>(N),
                                   static_cast<int>(W), a.d_theta_write == GradWrite::accumulate);
  });
}

}  // namespace brim::ops
