// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/launch.cuh"
#include "ops/kernel_table.h"

namespace brim::ops {
namespace {

// One warp per sequence: rows are unaligned, so each lane copies one token at a time.
__global__ void __launch_bounds__(256)
    gather_tokens_kernel(const int32_t* tokens, const int64_t* begins, const int32_t* starts, int32_t* ids,
                         int32_t* positions, int32_t position_offset, int B) {
  const int b = static_cast<int>((blockIdx.x * 256 + threadIdx.x) / 32), lane = threadIdx.x % 32;
  if (b >= B) return;
  const int at = starts[b], length = starts[b + 1] - at;
  const int32_t* from = tokens + begins[b];
  for (int i = lane; i < length; i += 32) {
    ids[at + i] = from[i];
    positions[at + i] = position_offset + i;
  }
}

}  // namespace

void gather_tokens_cuda(device::Stream& stream, const GatherTokensArgs& a) {
  cuda_op(stream, "gather_tokens", [&](device::CudaStream& s) {
    const int64_t B = a.begins.rows();
    launch<gather_tokens_kernel>(s, dim3(device::blocks_for(B, 8)), dim3(256), a.tokens.as<int32_t>(),
                                 a.begins.as<int64_t>(), a.starts.as<int32_t>(), a.ids.as<int32_t>(),
                                 a.positions.as<int32_t>(), static_cast<int32_t>(a.position_offset),
                                 static_cast<int>(B));
  });
}

}  // namespace brim::ops
