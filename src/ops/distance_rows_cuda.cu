// SPDX-License-Identifier: Apache-2.0
// distance_rows on CUDA: a block per distance, and a block per bucket for the gradient. Tables are small, so there is
// nothing to tune.
#include "ops/cuda/rows2d.cuh"
#include "ops/kernel_table.h"

namespace brim::ops {
namespace {

constexpr int kDistanceThreads = 128;

template <class Elem>
__global__ void __launch_bounds__(kDistanceThreads)
    distance_rows_kernel(const Elem* x, int64_t ldx, Elem* y, int64_t ldy, int C, int reach, DistanceBuckets buckets,
                         int64_t first) {
  const int u = static_cast<int>(blockIdx.x);
  const Elem* from = x + (distance_bucket(buckets, reach - u) - first) * ldx;
  for (int i = threadIdx.x; i < C; i += kDistanceThreads) y[u * ldy + i] = from[i];
}

template <class Elem>
__global__ void __launch_bounds__(kDistanceThreads)
    distance_rows_grad_kernel(const float* d_y, int64_t ldy, Elem* d_x, int64_t ldx, int C, int reach,
                              DistanceBuckets buckets, int64_t first) {
  __shared__ int begin, end;  // buckets never decrease with the distance, so the rows of one are neighbours
  if (threadIdx.x == 0) {
    begin = 2 * reach + 1;
    end = 0;
  }
  __syncthreads();
  const int b = static_cast<int>(blockIdx.x);
  for (int u = threadIdx.x; u <= 2 * reach; u += kDistanceThreads)
    if (distance_bucket(buckets, reach - u) - first == b) {
      atomicMin(&begin, u);
      atomicMax(&end, u + 1);
    }
  __syncthreads();
  for (int i = threadIdx.x; i < C; i += kDistanceThreads) {
    float sum = 0.0f;
    for (int u = begin; u < end; ++u) sum += d_y[u * ldy + i];
    d_x[b * ldx + i] = from_f32<Elem>(sum);
  }
}

template <class Elem>
__global__ void __launch_bounds__(kElementThreads)
    accumulate_kernel(const Elem* x, int64_t ldx, float* y, int64_t ldy, Extent e) {
  int64_t row, col;
  if (piece_at<1>(e, row, col)) y[row * ldy + col] += to_f32(x[row * ldx + col]);
}

}  // namespace

void distance_rows_cuda(device::Stream& stream, const DistanceRowsArgs& a) {
  cuda_op(stream, "distance_rows", [&](device::CudaStream& s) {
    dispatch_elem(a.x.dtype, [&](auto tag) {
      using Elem = typename decltype(tag)::type;
      device::launch<distance_rows_kernel<Elem>>(s, dim3(static_cast<unsigned>(a.y.rows())), dim3(kDistanceThreads),
                                                 static_cast<const Elem*>(a.x.data), a.x.ld(),
                                                 static_cast<Elem*>(a.y.data), a.y.ld(), static_cast<int>(a.y.cols()),
                                                 static_cast<int>(a.y.rows() / 2), a.buckets, a.first);
    });
  });
}

void distance_rows_grad_cuda(device::Stream& stream, const DistanceRowsGradArgs& a) {
  cuda_op(stream, "distance_rows_grad", [&](device::CudaStream& s) {
    dispatch_elem(a.d_x.dtype, [&](auto tag) {
      using Elem = typename decltype(tag)::type;
      device::launch<distance_rows_grad_kernel<Elem>>(
          s, dim3(static_cast<unsigned>(a.d_x.rows())), dim3(kDistanceThreads), a.d_y.as<float>(), a.d_y.ld(),
          static_cast<Elem*>(a.d_x.data), a.d_x.ld(), static_cast<int>(a.d_x.cols()),
          static_cast<int>(a.d_y.rows() / 2), a.buckets, a.first);
    });
  });
}

void accumulate_cuda(device::Stream& stream, const AccumulateArgs& a) {
  cuda_op(stream, "accumulate", [&](device::CudaStream& s) {
    const Extent e{a.x.rows(), a.x.cols()};
    dispatch_elem(a.x.dtype, [&](auto tag) {
      using Elem = typename decltype(tag)::type;
      device::launch<accumulate_kernel<Elem>>(s, element_grid(e, 1), dim3(kElementThreads),
                                              static_cast<const Elem*>(a.x.data), a.x.ld(), a.y.as<float>(), a.y.ld(),
                                              e);
    });
  });
}

}  // namespace brim::ops
