// SPDX-License-Identifier: Apache-2.0
// Gradients of attention within sequences of up to 64 tokens, which most short texts are. A block holds one head of one
// sequence, so every row is read once and scores are made once: a warp makes P and dS of 16 queries and all keys, and
// with them d_q; through shared memory it then finds those of 16 keys and all queries, transposed as they are loaded,
// and makes d_k and d_v. delta is a row's sum of dropped P times d_out Vᵀ, which is out · d_out before out was rounded:
// out is not read.
#include "ops/cuda/attention_grad.cuh"

namespace brim::ops {
namespace {

// Rows of 64 or 128 bytes in shared memory; a piece is 16 of them. One piece of eight rows touches every bank once.
template <int kBytes>
__device__ __forceinline__ SharedAddress piece_at(SharedAddress base, int row, int piece) {
  static_assert(kBytes == 64 || kBytes == 128);
  if constexpr (kBytes == 128)
    return base + row * 128 + ((piece ^ (row & 7)) << 4);
  else
    return base + (row >> 1) * 128 + (((row & 1) << 2 | (piece ^ (row >> 1 & 3))) << 4);
}
// Fragments of 16 rows and the 16 columns from `piece` on, in either order of their 8x8 matrices. Rows first is A, and,
// transposed, B with the rows summed over; columns first is B with the columns summed over, and, transposed, A.
template <int kBytes, bool kTransposed>
__device__ __forceinline__ void load_rows_first(uint32_t (&f)[4], SharedAddress base, int row, int piece, int lane) {
  load_matrices<kTransposed>(f, piece_at<kBytes>(base, row + (lane & 15), piece + (lane >> 4)));
}
template <int kBytes, bool kTransposed>
__device__ __forceinline__ void load_columns_first(uint32_t (&f)[4], SharedAddress base, int row, int piece, int lane) {
  load_matrices<kTransposed>(f, piece_at<kBytes>(base, row + (lane >> 4 << 3 | (lane & 7)), piece + (lane >> 3 & 1)));
}

// Products of 16 rows of a and the staged rows of b, 16 of those a step.
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

// 16 rows of a gradient as they are stored: words[j][h] has columns 8j + 2t and the next of row g + 8h.
template <int D>
struct GradRows {
  uint32_t words[D / 8][2];
};
// The sum over `steps` of a times 16 rows of b.
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
// Rows first .. first + 15 to `to`, those below `count`, by way of the same rows of `room`: 16 bytes a lane.
template <class Elem, int D>
__device__ __forceinline__ void store_rows_through(SharedAddress room, const GradRows<D>& rows, Elem* to, unsigned ld,
                                                   int first, int count, int lane) {
  const int g = lane >> 2, t = lane & 3;
  __syncwarp();  // before: earlier rows are out
#pragma unroll
  for (int j = 0; j < D / 8; ++j)
#pragma unroll
    for (int h = 0; h < 2; ++h) store_shared4(piece_at<2 * D>(room, first + g + 8 * h, j) + 4 * t, rows.words[j][h]);
  __syncwarp();
#pragma unroll
  for (int i = 0; i < D / 16; ++i) {
    const int at = 32 * i + lane, row = first + at / (D / 8), piece = at % (D / 8);
    if (row < count)
      *reinterpret_cast<uint4*>(to + static_cast<size_t>(row) * ld + 8 * piece) =
          load_shared16(piece_at<2 * D>(room, row, piece));
  }
}

// 16 bits for each of a lane's four probabilities of eight keys, two a word: rows `row` and `row8`, keys 2t and 2t + 1
// from `key` on. A hash is for four keys, which are two lanes': each makes one row's and gives the other its half.
__device__ __forceinline__ void dropout_words(uint32_t (&words)[2], const DropoutMask& mask, uint64_t row,
                                              uint64_t row8, int key, int t) {
  const bool odd = (t & 1) != 0;
  const uint64_t bits = dropout_bits(mask.seed, mask.site, odd ? row8 : row,
                                     static_cast<uint32_t>(key) / 4 + static_cast<uint32_t>(t) / 2);
  const auto low = static_cast<uint32_t>(bits), high = static_cast<uint32_t>(bits >> 32);
  const uint32_t mine = odd ? high : low, theirs = __shfl_xor_sync(~0u, odd ? low : high, 1);
  words[0] = odd ? theirs : mine;
  words[1] = odd ? mine : theirs;
}

// Scores of 16 queries from place `query` on and the eight keys from `key` on: bias added, minus infinity where a query
// does not see the key.
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

// (Dropped) P and dS of 16 queries and all keys, as A of products over keys.
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
  const uint64_t row = drop_row(p, seq.q_start + first + g, head),
                 row8 = drop_row(p, seq.q_start + first + g + 8, head);
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
        uint32_t kept[2] = {0, 0};
        if (p.drop.threshold != 0) dropout_words(kept, p.drop, row, row8, 8 * j, t);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          float dropped[2];
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float &prob = s[j][2 * h + i], &weighted = dp[j][2 * h + i];
            prob = exp2_fast(fmaf(prob, scale_log2, -lse[h]));
            dropped[i] = (kept[h] >> (16 * i) & 0xFFFF) >= p.drop.threshold ? prob * p.drop.scale : 0.0f;
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

// One head of one sequence of up to 16 * kWarps tokens; longer ones are the tiles'.
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
  // Rows up to the next multiple of 16 are zeros: what they are multiplied by is zero, and must stay so.
  const auto stage = [&](SharedAddress to, auto rows, int start, int count) {
    const Elem* from = head_of(rows, start);
    for (int i = threadIdx.x; i < (count + 15) / 16 * 16 * kPieces; i += kThreads) {
      const int row = i / kPieces, piece = i % kPieces;
      if (row < count)
        copy_async16(piece_at<2 * D>(to, row, piece), from + static_cast<size_t>(row) * rows.ld + 8 * piece);
      else
        store_shared16(piece_at<2 * D>(to, row, piece), make_uint4(0, 0, 0, 0));
    }
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
          const int row = first + g + 8 * (i & 1), piece = 2 * step + (i >> 1);
          store_shared4(piece_at<2 * kRows>(probs, row, piece) + 4 * t, own.probs[step][i]);
          store_shared4(piece_at<2 * kRows>(grads, row, piece) + 4 * t, own.grads[step][i]);
        }
      }
    weigh_rows<Elem, D, kWarps>(made, own.grads, k, k_tiles, p.scale, lane);
  }
  __syncthreads();
  // K and V are not read any more.
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
