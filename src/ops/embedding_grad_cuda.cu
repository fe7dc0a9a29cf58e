// SPDX-License-Identifier: Apache-2.0
// Gradients of the embedding tables. Tokens come sorted by table row; the first token of a run owns it and adds the
// run's rows one after another, so every sum has one order. A warp takes 256 columns of a run and keeps eight rows in
// flight.
#include "base/token.h"
#include "ops/cuda/elem.cuh"
#include "ops/kernel_table.h"

namespace brim::ops {
namespace {

constexpr int kThreads = 128, kAhead = 8;

template <class Elem>
__global__ void __launch_bounds__(kThreads)
    table_grad_kernel(const Elem* d_sum, int64_t ld, const int32_t* sorted, const int32_t* index, int mask,
                      float* table, int64_t ld_table, int64_t skipped, int T, int H) {
  const int i = static_cast<int>((static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32),
            column = static_cast<int>(blockIdx.y) * 256 + threadIdx.x % 32 * 8;
  if (i >= T) return;
  const int row = index[sorted[i]] & mask;
  if (row == skipped || (i > 0 && (index[sorted[i - 1]] & mask) == row)) return;
  if (column >= H) return;
  float sum[8];
  float* to = table + row * ld_table + column;
  load8(to, sum);
  int at = i;
  bool more = true;
  while (more) {
    Raw8<Elem> rows[kAhead];
    int count = 0;
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      more = more && at + j < T && (j == 0 && at == i ? true : (index[sorted[at + j]] & mask) == row);
      if (more) {
        rows[j] = load_raw8(d_sum + sorted[at + j] * ld + column);
        ++count;
      }
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j)
      if (j < count) {
        float f[8];
        unpack8<Elem>(rows[j], f);
#pragma unroll
        for (int e = 0; e < 8; ++e) sum[e] += f[e];
      }
    at += kAhead;
  }
  store8(to, sum);
}

// Column sums into the row of a type: a block takes eight columns of every row of that type, its threads' shares are
// added in order.
template <class Elem>
__global__ void __launch_bounds__(256)
    type_grad_kernel(const Elem* d_sum, int64_t ld, const int32_t* ids, float* table, int64_t ld_table, int T) {
  __shared__ float shares[8][8];
  const int column = static_cast<int>(blockIdx.x) * 8, warp = threadIdx.x / 32;
  const int type = static_cast<int>(blockIdx.y);
  float* to = table + type * ld_table;
  float sum[8] = {};
  for (int t = threadIdx.x; t < T; t += 256) {
    if (ids[t] >> kTypeShift != type) continue;
    float f[8];
    load8(d_sum + t * ld + column, f);
#pragma unroll
    for (int e = 0; e < 8; ++e) sum[e] += f[e];
  }
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    sum[e] = warp_sum(sum[e]);
    if (threadIdx.x % 32 == 0) shares[warp][e] = sum[e];
  }
  __syncthreads();
  if (threadIdx.x < 8) {
    float total = to[column + threadIdx.x];
    for (int w = 0; w < 8; ++w) total += shares[w][threadIdx.x];
    to[column + threadIdx.x] = total;
  }
}

}  // namespace

void embedding_grad_cuda(device::Stream& stream, const EmbeddingGradArgs& a) {
  cuda_op(stream, "embedding_grad", [&](device::CudaStream& s) {
    const int64_t T = a.batch.T, H = a.d_sum.cols();
    BRIM_CHECK(
        H % 8 == 0 && a.d_sum.ld() % 8 == 0 && a.d_word.ld() % 4 == 0 && (!a.d_position || a.d_position.ld() % 4 == 0),
        "embedding_grad: rows of {} elements, must be multiples of 8", H);
    dispatch_elem(a.d_sum.dtype, [&](auto tag) {
      using Elem = typename decltype(tag)::type;
      const dim3 grid(device::blocks_for(T, kThreads / 32), device::blocks_for(H, 256)), block(kThreads);
      const auto* d_sum = static_cast<const Elem*>(a.d_sum.data);
      device::launch<table_grad_kernel<Elem>>(s, grid, block, d_sum, a.d_sum.ld(), a.sorted.as<int32_t>(),
                                              a.batch.ids.as<int32_t>(), kIdMask, a.d_word.as<float>(), a.d_word.ld(),
                                              a.padding_id, static_cast<int>(T), static_cast<int>(H));
      if (a.d_position)
        device::launch<table_grad_kernel<Elem>>(s, grid, block, d_sum, a.d_sum.ld(), a.sorted_positions.as<int32_t>(),
                                                a.batch.positions.as<int32_t>(), -1, a.d_position.as<float>(),
                                                a.d_position.ld(), a.position_padding_id, static_cast<int>(T),
                                                static_cast<int>(H));
      if (a.d_type)
        device::launch<type_grad_kernel<Elem>>(
            s, dim3(static_cast<unsigned>(H / 8), static_cast<unsigned>(a.d_type.rows())), dim3(256), d_sum,
            a.d_sum.ld(), a.batch.ids.as<int32_t>(), a.d_type.as<float>(), a.d_type.ld(), static_cast<int>(T));
    });
  });
}

}  // namespace brim::ops
