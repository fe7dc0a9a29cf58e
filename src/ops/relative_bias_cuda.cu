// SPDX-License-Identifier: Apache-2.0
// relative_bias on CUDA: a few thousand numbers, one thread each.
#include "ops/cuda/elem.cuh"
#include "ops/kernel_table.h"

namespace brim::ops {
namespace {

constexpr int kThreads = 128;

template <class Elem>
__global__ void __launch_bounds__(kThreads)
    relative_bias_kernel(const Elem* table, int64_t ld, int heads, float* bias, int64_t ld_bias) {
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  const int head = i / static_cast<int>(kRelativeWidth), at = i % static_cast<int>(kRelativeWidth);
  if (head >= heads) return;
  bias[head * ld_bias + at] = to_f32(table[relative_bucket(at - kRelativeReach) * ld + head]);
}

// One thread per bucket and head, adding the distances of its bucket in order.
__global__ void __launch_bounds__(kThreads)
    relative_bias_grad_kernel(const float* d_bias, int64_t ld_bias, int heads, float* d_table, int64_t ld) {
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  const int head = i % heads, bucket = i / heads;
  if (bucket >= static_cast<int>(kRelativeBuckets)) return;
  float sum = 0.0f;
  for (int at = 0; at < static_cast<int>(kRelativeWidth); ++at)
    if (relative_bucket(at - kRelativeReach) == bucket) sum += d_bias[head * ld_bias + at];
  d_table[bucket * ld + head] += sum;
}

}  // namespace

void relative_bias_cuda(device::Stream& stream, const RelativeBiasArgs& a) {
  cuda_op(stream, "relative_bias", [&](device::CudaStream& s) {
    const int64_t heads = a.table.cols();
    dispatch_elem(a.table.dtype, [&](auto tag) {
      using Elem = typename decltype(tag)::type;
      device::launch<relative_bias_kernel<Elem>>(s, dim3(device::blocks_for(heads * kRelativeWidth, kThreads)),
                                                 dim3(kThreads), static_cast<const Elem*>(a.table.data), a.table.ld(),
                                                 static_cast<int>(heads), a.bias.as<float>(), a.bias.ld());
    });
  });
}

void relative_bias_grad_cuda(device::Stream& stream, const RelativeBiasGradArgs& a) {
  cuda_op(stream, "relative_bias_grad", [&](device::CudaStream& s) {
    const int64_t heads = a.d_table.cols();
    device::launch<relative_bias_grad_kernel>(s, dim3(device::blocks_for(heads * kRelativeBuckets, kThreads)),
                                              dim3(kThreads), a.d_bias.as<float>(), a.d_bias.ld(),
                                              static_cast<int>(heads), a.d_table.as<float>(), a.d_table.ld());
  });
}

}  // namespace brim::ops
