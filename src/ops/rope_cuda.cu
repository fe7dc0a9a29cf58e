// SPDX-License-Identifier: Apache-2.0
// rope on CUDA: a block processes eight rows; its threads first compute the sines and cosines of the rows, then rotate
// the heads.
#include "ops/cuda/rope.cuh"
#include "ops/kernel_table.h"

namespace brim::ops {
namespace {

constexpr int kRopeRows = 8, kRopeThreads = 256;

template <class Elem, int kWidth>
__global__ void __launch_bounds__(kRopeThreads)
    rope_kernel(Elem* x, int64_t ld, const int32_t* positions, const RopeFrequencies frequencies, int T, int W, int D,
                float sign) {
  __shared__ float2 turns[kRopeRows * kRopeMaxHeadSize / 2];
  const int half = D / 2, first = static_cast<int>(blockIdx.x) * kRopeRows, rows = min(kRopeRows, T - first);
  for (int i = threadIdx.x; i < rows * half; i += kRopeThreads) {
    const float2 turn = turn_of(positions[first + i / half], frequencies.of[i % half]);
    turns[i] = make_float2(turn.x, sign * turn.y);
  }
  __syncthreads();
  const int pieces = W / 2 / kWidth, per_head = half / kWidth;
  for (int i = threadIdx.x; i < rows * pieces; i += kRopeThreads) {
    const int row = i / pieces, piece = i - row * pieces, head = piece / per_head,
              j = (piece - head * per_head) * kWidth;
    Elem* at = x + static_cast<int64_t>(first + row) * ld + head * D + j;
    float a[kWidth], b[kWidth];
    load_piece<kWidth>(at, a);
    load_piece<kWidth>(at + half, b);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      const float2 turn = turns[row * half + j + e], both = turned({a[e], b[e]}, turn.x, turn.y);
      a[e] = both.x;
      b[e] = both.y;
    }
    store_piece<kWidth>(at, a);
    store_piece<kWidth>(at + half, b);
  }
}

}  // namespace

void rope_cuda(device::Stream& stream, const RopeArgs& a) {
  cuda_op(stream, "rope", [&](device::CudaStream& s) {
    const RopeFrequencies frequencies = rope_frequencies(a.theta, a.head_size);
    const int T = static_cast<int>(a.x.rows()), W = static_cast<int>(a.x.cols()), D = static_cast<int>(a.head_size);
    dispatch_elem(a.x.dtype, [&](auto tag) {
      using Elem = typename decltype(tag)::type;
      const dim3 grid(device::blocks_for(T, kRopeRows)), block(kRopeThreads);
      auto* x = static_cast<Elem*>(a.x.data);
      const auto* positions = a.positions.as<int32_t>();
      const float sign = a.back ? -1.0f : 1.0f;
      if (D % 16 == 0 && eight_wide(a.x))
        device::launch<rope_kernel<Elem, 8>>(s, grid, block, x, a.x.ld(), positions, frequencies, T, W, D, sign);
      else
        device::launch<rope_kernel<Elem, 1>>(s, grid, block, x, a.x.ld(), positions, frequencies, T, W, D, sign);
    });
  });
}

}  // namespace brim::ops
