// SPDX-License-Identifier: Apache-2.0
// Attention gradients for sequences of up to 64 tokens, which covers most short texts. A block holds one head of one
// sequence, so every row is read once and scores are computed once: a warp computes P and dS of 16 queries and all
// keys, and from them d_q; through shared memory it then loads those of 16 keys and all queries, transposed, and
// computes d_k and d_v. delta is the row sum of dropped P times d_out Vᵀ, which equals out · d_out before the
// rounding of out, so out is not read.
#include "ops/cuda/attention_grad.cuh"

namespace brim::ops {
namespace {

// Swizzled address in shared memory with rows of 64 or 128 bytes and pieces of 16 bytes; one piece of eight rows
// touches every bank once. `row` is a multiple of eight and `r` the lane's offset: its part of the address is the same
// for all rows, and a piece flips bits of it (computing each address separately was a quarter of the instructions).
template <int kBytes>
__device__ __forceinline__ SharedAddress piece_at(SharedAddress base, int row, int r, int piece) {
  static_assert(kBytes == 64 || kBytes == 128);
  const int at = kBytes == 128 ? r * 128 + ((r & 7) << 4) : r * 64 + ((r >> 1 & 3) << 4);
  return flip_bits(base + at, piece << 4) + row * kBytes;
}
// Fragments of 16 rows and the 16 columns starting at `piece`, which is even, in either order of their 8x8 matrices.
// Rows first is A, and, transposed, B summed over rows; columns first is B summed over columns, and, transposed, A.
template <int kBytes, bool kTransposed>
__device__ __forceinline__ void load_rows_first(uint32_t (&f)[4], SharedAddress base, int row, int piece, int lane) {
  load_matrices<kTransposed>(f, flip_bits(piece_at<kBytes>(base, 0, lane & 15, lane >> 4), piece << 4) + row * kBytes);
}
template <int kBytes, bool kTransposed>
__device__ __forceinline__ void load_columns_first(uint32_t (&f)[4], SharedAddress base, int row, int piece, int lane) {
  const SharedAddress own = piece_at<kBytes>(base, 0, lane >> 4 << 3 | (lane & 7), lane >> 3 & 1);
  load_matrices<kTransposed>(f, flip_bits(own, piece << 4) + row * kBytes);
}

// Products of 16 rows of a and the staged rows of b, 16 of those per step.
template <class Elem, int D, int kSteps>
__device__ __forceinline__ void row_products(float (&c)[2 * kSteps][4], SharedAddress a, int first, SharedAddress b,
                                             int steps, int lane) {
  uint32_t own[D / 16][4], other[4];
#pragma unroll
  for (int i = 0; i < D / 16; ++i) load_rows_first<2 * D, false>(own[i], a, first, 2 * i, lane);
#pragma unroll
  for (int step = 0; step < kSteps; ++step)
    if (step < steps) {
#pragma unroll
      for (int e = 0; e < 4; ++e) c[2 * step][e] = c[2 * step + 1][e] = 0.0f;
#pragma unroll
      for (int i = 0; i < D / 16; ++i) {
        load_columns_first<2 * D, false>(other, b, 16 * step, 2 * i, lane);
        mma_16816<Elem>(c[2 * step], own[i], other[0], other[1]);
        mma_16816<Elem>(c[2 * step + 1], own[i], other[2], other[3]);
      }
    }
}

// 16 rows of a gradient in storage order: words[j][h] has columns 8j + 2t and 8j + 2t + 1 of row g + 8h.
template <int D>
struct GradRows {
  uint32_t words[D / 8][2];
};
// Sum over `steps` of a times 16 rows of b.
template <class Elem, int D, int kSteps>
__device__ __forceinline__ void weigh_rows(GradRows<D>& to, const uint32_t (&a)[kSteps][4], SharedAddress b, int steps,
                                           float factor, int lane) {
  Accum<D> sum;
  clear(sum);
#pragma unroll
  for (int step = 0; step < kSteps; ++step)
    if (step < steps) {
#pragma unroll
      for (int i = 0; i < D / 16; ++i) {
        uint32_t rows[4];
        load_rows_first<2 * D, true>(rows, b, 16 * step, 2 * i, lane);
        mma_16816<Elem>(sum.c[2 * i], a[step], rows[0], rows[1]);
        mma_16816<Elem>(sum.c[2 * i + 1], a[step], rows[2], rows[3]);
      }
    }
#pragma unroll
  for (int j = 0; j < D / 8; ++j)
#pragma unroll
    for (int h = 0; h < 2; ++h) to.words[j][h] = pack2<Elem>(sum.c[j][2 * h] * factor, sum.c[j][2 * h + 1] * factor);
}
// Stores rows first .. first + 15 below `count` to `to`, staged through the same rows of `room`: 16 bytes per lane.
template <class Elem, int D>
__device__ __forceinline__ void store_rows_through(SharedAddress room, const GradRows<D>& rows, Elem* to, unsigned ld,
                                                   int first, int count, int lane) {
  const int g = lane >> 2, t = lane & 3;
  __syncwarp();  // earlier rows have been read
#pragma unroll
  for (int j = 0; j < D / 8; ++j)
#pragma unroll
    for (int h = 0; h < 2; ++h) store_shared4(piece_at<2 * D>(room, first + 8 * h, g, j) + 4 * t, rows.words[j][h]);
  __syncwarp();
  constexpr int kPieces = D / 8, kStep = 32 / kPieces;  // rows per step: four or eight
  const int r = static_cast<int>(static_cast<unsigned>(lane) / kPieces), piece = lane & (kPieces - 1);
  to += static_cast<size_t>(first + r) * ld + 8 * piece;
#pragma unroll
  for (int i = 0; i < D / 16; ++i)
    if (first + r + kStep * i < count)
      *reinterpret_cast<uint4*>(to + static_cast<size_t>(kStep * i) * ld) =
          load_shared16(piece_at<2 * D>(room, first + kStep * i / 8 * 8, r + kStep * i % 8, piece));
}

// Scores of 16 queries starting at position `query` and the eight keys starting at `key`: adds the bias, and sets
// unseen keys to minus infinity.
__device__ __forceinline__ void bias_and_mask(float (&s)[4], const AttentionProblem& p, int kv_len, int query, int key,
                                              int head, int g, int t) {
  if (p.bias == nullptr && p.window == 0 && key + 8 <= kv_len) return;
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const int k = key + 2 * t + (e & 1), distance = k - (query + g + 8 * (e >> 1));
    if (p.bias != nullptr) s[e] += bias_of(p, head, distance);
    if (k >= kv_len || (p.window > 0 && abs(distance) > p.window)) s[e] = -INFINITY;
  }
}

// (Dropped) P and dS of 16 queries and all keys, as operand A of products over keys.
template <int kSteps>
struct ScoreRows {
  uint32_t probs[kSteps][4], grads[kSteps][4];
};

template <class Elem, int D, int kWarps>
__device__ __forceinline__ void make_scores(ScoreRows<kWarps>& made, const AttentionProblem& p,
                                            const AttentionSequence& seq, SharedAddress q, SharedAddress k,
                                            SharedAddress v, SharedAddress d_out, int first, int head,
                                            const float (&lse)[2], int lane) {
  const int g = lane >> 2, t = lane & 3, steps = (seq.kv_len + 15) / 16;
  const float scale_log2 = p.scale * kLog2e;
  const DropLane drop = drop_lane(p, seq.q_start + first + g, head, t);
  const uint64_t columns = dropout_columns(p.drop.site, static_cast<uint32_t>(t) / 2);
  const uint32_t limit = p.drop.threshold != 0 ? drop.limit : 0;
  float s[2 * kWarps][4], dp[2 * kWarps][4], delta[2] = {0.0f, 0.0f};
  row_products<Elem, D, kWarps>(s, q, first, k, steps, lane);
  row_products<Elem, D, kWarps>(dp, d_out, first, v, steps, lane);
  // s becomes P, dp becomes dropped P times d_out Vᵀ.
#pragma unroll
  for (int step = 0; step < kWarps; ++step)
    if (step < steps) {
#pragma unroll
      for (int j = 2 * step; j < 2 * step + 2; ++j) {
        bias_and_mask(s[j], p, seq.kv_len, first, 8 * j, head, g, t);
        uint32_t words[2] = {~0u, ~0u};
        if (p.drop.threshold != 0) drop_words(words, drop, columns + static_cast<uint64_t>(j) * (2 * kDropoutQuad));
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          float dropped[2];
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float &prob = s[j][2 * h + i], &weighted = dp[j][2 * h + i];
            prob = exp2_fast(fmaf(prob, scale_log2, -lse[h]));
            dropped[i] = (i == 0 ? words[h] << 16 : words[h]) > limit ? prob * p.drop.scale : 0.0f;
            weighted *= dropped[i];
            delta[h] += weighted;
          }
          made.probs[step][2 * (j & 1) + h] = pack2<Elem>(dropped[0], dropped[1]);
        }
      }
    }
  delta[0] = quad_sum(delta[0]);
  delta[1] = quad_sum(delta[1]);
#pragma unroll
  for (int step = 0; step < kWarps; ++step)
    if (step < steps) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int j = 2 * step + (i >> 1), h = i & 1;
        made.grads[step][i] =
            pack2<Elem>(fmaf(-s[j][2 * h], delta[h], dp[j][2 * h]), fmaf(-s[j][2 * h + 1], delta[h], dp[j][2 * h + 1]));
      }
    }
}

// One head of one sequence of up to 16 * kWarps tokens; longer ones use the tile kernel.
template <class Elem, int D, int kWarps>
__global__ void __launch_bounds__(32 * kWarps, kWarps == 2 ? 10 : 4)
    attention_grad_whole_kernel(const GradProblem<Elem> x, int first_sequence) {
  constexpr int kRows = 16 * kWarps, kThreads = 32 * kWarps, kPieces = D / 8;
  __shared__ __align__(128) uint8_t staged[4][kRows * D * 2];
  __shared__ __align__(128) uint8_t scores[2][kRows * kRows * 2];
  const AttentionProblem& p = x.p;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane >> 2, t = lane & 3, first = 16 * warp;
  const int head = static_cast<int>(blockIdx.x) % p.heads;
  const AttentionSequence seq = attention_sequence(p, first_sequence + static_cast<int>(blockIdx.x) / p.heads);
  if (seq.kv_len > kRows) return;
  const auto head_of = [&](auto rows, int row) { return rows.data + static_cast<size_t>(row) * rows.ld + head * D; };
  if (seq.kv_len == 0) {
    if (p.first_query_only)
      for (int d = threadIdx.x; d < D; d += kThreads) head_of(x.d_q, seq.q_start)[d] = from_f32<Elem>(0.0f);
    return;
  }
  const SharedAddress q = shared_address(staged[0]), k = shared_address(staged[1]), v = shared_address(staged[2]),
                      d_out = shared_address(staged[3]), probs = shared_address(scores[0]),
                      grads = shared_address(scores[1]);
  // Rows up to the next multiple of 16 are zero: their multiplier is zero, and the product must stay zero.
  const auto stage = [&](SharedAddress to, auto rows, int start, int count) {
    constexpr int kStep = kThreads / kPieces;
    const int r = static_cast<int>(threadIdx.x / kPieces), piece = static_cast<int>(threadIdx.x % kPieces);
    const Elem* from = head_of(rows, start + r) + 8 * piece;
    to = piece_at<2 * D>(to, 0, r, piece);
#pragma unroll
    for (int row = 0; row < kRows; row += kStep)
      if (row + r < count)
        copy_async16(to + row * D * 2, from + static_cast<size_t>(row) * rows.ld);
      else if (row + r < (count + 15) / 16 * 16)
        store_shared16(to + row * D * 2, make_uint4(0, 0, 0, 0));
  };
  stage(q, x.q, seq.q_start, seq.q_len);
  stage(k, x.k, seq.kv_start, seq.kv_len);
  stage(d_out, x.d_out, seq.q_start, seq.q_len);
  stage(v, x.v, seq.kv_start, seq.kv_len);
  copy_async_commit();
  const int q_tiles = (seq.q_len + 15) / 16, k_tiles = (seq.kv_len + 15) / 16;
  float lse[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = first + g + 8 * h;
    // A query past the end attends to nothing.
    lse[h] = row < seq.q_len ? p.lse[static_cast<size_t>(seq.q_start + row) * p.heads + head] * kLog2e : INFINITY;
  }
  copy_async_wait<0>();
  __syncthreads();
  GradRows<D> made;
  if (warp < q_tiles) {
    ScoreRows<kWarps> own;
    make_scores<Elem, D, kWarps>(own, p, seq, q, k, v, d_out, first, head, lse, lane);
#pragma unroll
    for (int step = 0; step < kWarps; ++step)
      if (step < k_tiles) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = first + 8 * (i & 1), piece = 2 * step + (i >> 1);
          store_shared4(piece_at<2 * kRows>(probs, row, g, piece) + 4 * t, own.probs[step][i]);
          store_shared4(piece_at<2 * kRows>(grads, row, g, piece) + 4 * t, own.grads[step][i]);
        }
      }
    weigh_rows<Elem, D, kWarps>(made, own.grads, k, k_tiles, p.scale, lane);
  }
  __syncthreads();
  // K and V are no longer needed.
  if (warp < q_tiles)
    store_rows_through<Elem, D>(k, made, head_of(x.d_q, seq.q_start), x.d_q.ld, first, seq.q_len, lane);
  if (warp >= k_tiles) return;
  uint32_t columns[kWarps][4];
  const auto transposed = [&](SharedAddress from) {
#pragma unroll
    for (int step = 0; step < kWarps; ++step)
      if (step < q_tiles) load_columns_first<2 * kRows, true>(columns[step], from, 16 * step, 2 * warp, lane);
  };
  transposed(probs);
  weigh_rows<Elem, D, kWarps>(made, columns, d_out, q_tiles, 1.0f, lane);
  store_rows_through<Elem, D>(v, made, head_of(x.d_v, seq.kv_start), x.d_v.ld, first, seq.kv_len, lane);
  transposed(grads);
  weigh_rows<Elem, D, kWarps>(made, columns, q, q_tiles, p.scale, lane);
  store_rows_through<Elem, D>(v, made, head_of(x.d_k, seq.kv_start), x.d_k.ld, first, seq.kv_len, lane);
}

}  // namespace

template <class Elem, int D>
void launch_whole_gradients(device::CudaStream& s, const GradProblem<Elem>& x) {
  const AttentionProblem& p = x.p;
  device::launch<attention_grad_whole_kernel<Elem, D, 4>>(s, dim3(static_cast<unsigned>(p.n_long * p.heads)), dim3(128),
                                                          x, 0);
  device::launch<attention_grad_whole_kernel<Elem, D, 2>>(s, dim3(static_cast<unsigned>((p.B - p.n_long) * p.heads)),
                                                          dim3(64), x, p.n_long);
}

template void launch_whole_gradients<__half, 32>(device::CudaStream&, const GradProblem<__half>&);
template void launch_whole_gradients<__half, 64>(device::CudaStream&, const GradProblem<__half>&);
template void launch_whole_gradients<__nv_bfloat16, 32>(device::CudaStream&, const GradProblem<__nv_bfloat16>&);
template void launch_whole_gradients<__nv_bfloat16, 64>(device::CudaStream&, const GradProblem<__nv_bfloat16>&);

}  // namespace brim::ops
