// SPDX-License-Identifier: Apache-2.0
// Gradients of the embedding tables. Tokens are sorted by table row, giving a run of tokens per row, and every run is
// added in a fixed order. A warp processes 256 columns of a short run with eight rows in flight; a long run (the first
// token of every text, the first positions) is processed by a block, with the rows divided among its warps.
#include "base/token.h"
#include "ops/cuda/column_sums.cuh"
#include "ops/kernel_table.h"

namespace brim::ops {
namespace {

constexpr int kThreads = 128, kAhead = 8;
constexpr int kLongRun = 64;  // longer runs are long
constexpr int kLongThreads = 512, kLongWarps = kLongThreads / 32;

// Tokens in the order of their table rows.
struct SortedTokens {
  const int32_t *sorted, *index;
  int mask, T;
  __device__ __forceinline__ int row(int i) const { return index[sorted[i]] & mask; }
  __device__ __forceinline__ bool is_of(int i, int table_row) const { return i < T && row(i) == table_row; }
};

template <class Elem>
__global__ void __launch_bounds__(kThreads) short_runs_kernel(const Elem* d_sum, int64_t ld, SortedTokens tokens,
                                                              float* table, int64_t ld_table, int64_t skipped, int H) {
  const int i = static_cast<int>((static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32),
            column = static_cast<int>(blockIdx.y) * 256 + threadIdx.x % 32 * 8;
  if (i >= tokens.T) return;
  const int row = tokens.row(i);
  if (row == skipped || (i > 0 && tokens.row(i - 1) == row) || tokens.is_of(i + kLongRun, row)) return;
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
      more = more && tokens.is_of(at + j, row);
      if (more) {
        rows[j] = load_raw8(d_sum + tokens.sorted[at + j] * ld + column);
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

// A block inspects every kLongRun-th token: a long run contains at least one of them, and the first one owns it.
template <class Elem>
__global__ void __launch_bounds__(kLongThreads)
    long_runs_kernel(const Elem* d_sum, int64_t ld, SortedTokens tokens, float* table, int64_t ld_table,
                     int64_t skipped, int H) {
  __shared__ int listed[kLongThreads];  // next tokens of the run, -1 past its end
  __shared__ float shares[kLongWarps][256];
  const int at = static_cast<int>(blockIdx.x) * kLongRun, row = tokens.row(at);
  if (row == skipped || (at >= kLongRun && tokens.row(at - kLongRun) == row)) return;
  int begin = max(0, at - kLongRun + 1);
  for (int end = at; begin < end;) {
    const int middle = (begin + end) / 2;
    if (tokens.row(middle) == row)
      end = middle;
    else
      begin = middle + 1;
  }
  if (!tokens.is_of(begin + kLongRun, row)) return;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = static_cast<int>(blockIdx.y) * 256,
            column = first + lane * 8;
  float sum[8] = {};
  for (bool more = true; more; begin += kLongThreads) {
    const int mine = begin + static_cast<int>(threadIdx.x);
    listed[threadIdx.x] = tokens.is_of(mine, row) ? tokens.sorted[mine] : -1;
    __syncthreads();
    if (column < H)
      for (int r = 32 * warp; r < 32 * warp + 32 && listed[r] >= 0; r += kAhead) {
        Raw8<Elem> rows[kAhead];
#pragma unroll
        for (int j = 0; j < kAhead; ++j)
          if (listed[r + j] >= 0) rows[j] = load_raw8(d_sum + listed[r + j] * ld + column);
#pragma unroll
        for (int j = 0; j < kAhead; ++j)
          if (listed[r + j] >= 0) {
            float f[8];
            unpack8<Elem>(rows[j], f);
#pragma unroll
            for (int e = 0; e < 8; ++e) sum[e] += f[e];
          }
      }
    more = listed[kLongThreads - 1] >= 0;
    __syncthreads();
  }
#pragma unroll
  for (int e = 0; e < 8; ++e) shares[warp][lane * 8 + e] = sum[e];
  __syncthreads();
  const int c = static_cast<int>(threadIdx.x);
  if (c >= 256 || first + c >= H) return;
  float* to = table + row * ld_table + first + c;
  float total = *to;
  for (int w = 0; w < kLongWarps; ++w) total += shares[w][c];
  *to = total;
}

template <class Elem>
void add_to_table(device::CudaStream& s, const tensor::TensorView& d_sum, const SortedTokens& tokens,
                  const tensor::TensorView& table, int64_t skipped) {
  const int64_t H = d_sum.cols();
  const unsigned strips = device::blocks_for(H, 256);
  const auto* from = static_cast<const Elem*>(d_sum.data);
  device::launch<short_runs_kernel<Elem>>(s, dim3(device::blocks_for(tokens.T, kThreads / 32), strips), dim3(kThreads),
                                          from, d_sum.ld(), tokens, table.as<float>(), table.ld(), skipped,
                                          static_cast<int>(H));
  device::launch<long_runs_kernel<Elem>>(s, dim3(device::blocks_for(tokens.T, kLongRun), strips), dim3(kLongThreads),
                                         from, d_sum.ld(), tokens, table.as<float>(), table.ld(), skipped,
                                         static_cast<int>(H));
}

// Sums of 256 columns of the rows of one type within a run, with the type in blockIdx.z: each warp processes every
// eighth row, and their sums are added in order.
template <class Elem>
__global__ void __launch_bounds__(kSumThreads) type_sums_kernel(const Elem* d_sum, int64_t ld, const int32_t* ids,
                                                                int T, int H, int rows_per_block, float* partials) {
  __shared__ float shares[kSumWarps][256];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = static_cast<int>(blockIdx.x) * 256,
            column = first + lane * 8, type = static_cast<int>(blockIdx.z);
  const int begin = static_cast<int>(blockIdx.y) * rows_per_block, end = min(T, begin + rows_per_block);
  float sum[8] = {};
  if (column < H)
    for (int r = begin + warp; r < end; r += kSumWarps * kAhead) {
      Raw8<Elem> rows[kAhead];
      bool is_of[kAhead];
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        const int t = r + j * kSumWarps;
        is_of[j] = t < end && ids[t] >> kTypeShift == type;
        if (is_of[j]) rows[j] = load_raw8(d_sum + t * ld + column);
      }
#pragma unroll
      for (int j = 0; j < kAhead; ++j)
        if (is_of[j]) {
          float f[8];
          unpack8<Elem>(rows[j], f);
#pragma unroll
          for (int e = 0; e < 8; ++e) sum[e] += f[e];
        }
    }
#pragma unroll
  for (int e = 0; e < 8; ++e) shares[warp][lane * 8 + e] = sum[e];
  __syncthreads();
  const int c = static_cast<int>(threadIdx.x);
  if (first + c >= H) return;
  float total = 0.0f;
#pragma unroll
  for (int w = 0; w < kSumWarps; ++w) total += shares[w][c];
  partials[(static_cast<int64_t>(type) * gridDim.y + blockIdx.y) * H + first + c] = total;
}

}  // namespace

void embedding_grad_cuda(device::Stream& stream, const EmbeddingGradArgs& a) {
  cuda_op(stream, "embedding_grad", [&](device::CudaStream& s) {
    const int64_t T = a.batch.T, H = a.d_sum.cols();
    BRIM_CHECK(
        H % 8 == 0 && a.d_sum.ld() % 8 == 0 && a.d_word.ld() % 4 == 0 && (!a.d_position || a.d_position.ld() % 4 == 0),
        "embedding_grad: rows have {} elements, must be a multiple of 8", H);
    dispatch_elem(a.d_sum.dtype, [&](auto tag) {
      using Elem = typename decltype(tag)::type;
      const int count = static_cast<int>(T);
      add_to_table<Elem>(s, a.d_sum, {a.sorted.as<int32_t>(), a.batch.ids.as<int32_t>(), kIdMask, count}, a.d_word,
                         a.padding_id);
      if (a.d_position)
        add_to_table<Elem>(s, a.d_sum, {a.sorted_positions.as<int32_t>(), a.batch.positions.as<int32_t>(), -1, count},
                           a.d_position, a.position_padding_id);
      if (a.d_type) {
        const int64_t types = a.d_type.rows(), blocks = cuda_column_partials(T),
                      wanted = cuda_lane_sums_bytes(types, T, H);
        BRIM_CHECK(a.scratch && a.scratch.bytes() >= wanted, "embedding_grad: scratch has {} bytes, needs {}",
                   a.scratch ? a.scratch.bytes() : 0, wanted);
        auto* partials = static_cast<float*>(a.scratch.data);
        device::launch<type_sums_kernel<Elem>>(
            s, dim3(device::blocks_for(H, 256), static_cast<unsigned>(blocks), static_cast<unsigned>(types)),
            dim3(kSumThreads), static_cast<const Elem*>(a.d_sum.data), a.d_sum.ld(), a.batch.ids.as<int32_t>(), count,
            static_cast<int>(H), static_cast<int>((T + blocks - 1) / blocks), partials);
        add_rows_cuda(s, partials, blocks, H, types, a.d_type.as<float>(), a.d_type.ld(), true);
      }
    });
  });
}

}  // namespace brim::ops
