// SPDX-License-Identifier: Apache-2.0
// Gradients of packed attention, without atomics and in a fixed order. With P recomputed from the saved log-sum-exp and
// delta = out · d_out per query,
//   dS = P ∘ (d_out Vᵀ − delta),   d_q = dS K,   d_k = dSᵀ Q,   d_v = Pᵀ d_out.
// d_q and (d_k, d_v) are two passes of one shape: 16 own rows a warp, held in registers, against chunks of 16 other
// rows; the second pass computes Sᵀ = K Qᵀ, so nothing is ever transposed. Seven products instead of five buy that. A
// sequence of up to 32 tokens is one warp's; longer ones are cut into tiles of 64 own rows, a block each, the other
// side streaming through two buffers in shared memory. A bias's gradient is a pass of its own that makes dS once more:
// only models that have one pay for it.
#include "ops/cuda/attention_tile.cuh"
#include "ops/cuda/column_sums.cuh"
#include "ops/kernel_table.h"

namespace brim::ops {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kTileRows = 16 * kWarps;  // own rows a block, and other rows a buffer
constexpr float kLog2e = 1.44269504f;

template <class Elem>
struct Rows {
  Elem* data;
  unsigned ld;
};
template <class Elem>
struct GradProblem {
  AttentionProblem p;  // lse and drop as in the forward pass
  Rows<const Elem> q, k, v, out, d_out;
  Rows<Elem> d_q, d_k, d_v;
  float* delta;      // [Tq, heads], of sequences longer than kShortTokens
  float* bias_sums;  // [kBiasParts, heads, 2 reach + 1]
};

// Other rows in device memory: first is K or Q, second V or d_out.
template <class Elem, int D>
struct GlobalRows {
  const Elem *first, *second;
  unsigned ld_first, ld_second;
  __device__ __forceinline__ KRow<D> wide(int which, int row, int t) const {
    return which == 0 ? load_k<Elem, D>(first, ld_first, row, t) : load_k<Elem, D>(second, ld_second, row, t);
  }
  __device__ __forceinline__ VRow<D> deep(int which, int row, int g) const {
    return which == 0 ? load_v<Elem, D>(first, ld_first, row, g) : load_v<Elem, D>(second, ld_second, row, g);
  }
};
template <class Elem, int D>
struct SharedRows {
  SharedAddress first, second;
  __device__ __forceinline__ KRow<D> wide(int which, int row, int t) const {
    return staged_k<D>(which == 0 ? first : second, row, t);
  }
  __device__ __forceinline__ VRow<D> deep(int which, int row, int g) const {
    return staged_v<D>(which == 0 ? first : second, row, g);
  }
};

template <int D>
struct GradTile {
  QTile<D> first, second;      // own rows: Q and d_out, or K and V
  Accum<D> d_first, d_second;  // d_q; or d_k and d_v
};

template <class Elem, int D>
__device__ __forceinline__ void weigh_chunk(Accum<D>& o, const uint32_t (&a)[4], const VRow<D> (&v)[4]) {
#pragma unroll
  for (int j = 0; j < D / 8; ++j) {
    const uint32_t pick = (j & 1) != 0 ? 0x7632 : 0x5410;
    mma_16816<Elem>(o.c[j], a, __byte_perm(v[0].w[j / 2], v[1].w[j / 2], pick),
                    __byte_perm(v[2].w[j / 2], v[3].w[j / 2], pick));
  }
}

// What dropout kept of a query's probabilities, asked for by places in the sequence: hashed anew for each.
struct HashedKept {
  const AttentionProblem& p;
  int q_start, head;
  __device__ __forceinline__ bool at(int query, int key) const {
    const uint64_t bits =
        dropout_bits(p.drop.seed, p.drop.site, drop_row(p, q_start + query, head), static_cast<uint32_t>(key) / 4);
    return dropout_keeps(bits, key, p.drop.threshold);
  }
};
// The same from shared memory, one bit a key, 32 keys a word: made once by all lanes, four keys a hash, read by both
// passes (attention_grad of tweets 758 to 679 us on an H200, of 128 tokens 1,359 to 1,068).
struct KeptWords {
  const uint32_t* words;
  int per_query, first_query, first_key;
  __device__ __forceinline__ bool at(int query, int key) const {
    const int k = key - first_key;
    return (words[(query - first_query) * per_query + k / 32] >> (k & 31) & 1) != 0;
  }
};
// The word of keys first .. first+31 of a query's row.
__device__ __forceinline__ uint32_t kept_word(const AttentionProblem& p, int row, int head, int first) {
  const uint64_t drop = drop_row(p, row, head);
  uint32_t word = 0;
#pragma unroll
  for (int quad = 0; quad < 8; ++quad) {
    const uint64_t bits = dropout_bits(p.drop.seed, p.drop.site, drop, static_cast<uint32_t>(first) / 4 + quad);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      word |= static_cast<uint32_t>(dropout_keeps(bits, i, p.drop.threshold)) << (4 * quad + i);
  }
  return word;
}

// (Dropped) probabilities s and dS of 16 own rows against other rows c0 .. c0+15 of `other`, of which those up to c0 +
// left count. `lse` (base 2) and `delta` belong to queries: own rows g and g + 8 (two values) when those are queries,
// other rows (indexed like `other`) when the own rows are keys. `own` and `far` are the first own and other row's
// places in their sequence.
template <class Elem, int D, bool kKeys, class Source, class Kept>
__device__ __forceinline__ void score_gradients(float (&s)[2][4], float (&dp)[2][4], const GradTile<D>& tile,
                                                const Source& other, int c0, int left, const float* lse,
                                                const float* delta, const AttentionProblem& p, const Kept& kept,
                                                int own, int far, int head, int g, int t) {
  const float scale_log2 = p.scale * kLog2e;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int row = c0 + min(8 * j + g, left);
    const KRow<D> first = other.wide(0, row, t), second = other.wide(1, row, t);
    s[j][0] = s[j][1] = s[j][2] = s[j][3] = 0.0f;
    dp[j][0] = dp[j][1] = dp[j][2] = dp[j][3] = 0.0f;
#pragma unroll
    for (int i = 0; i < D / 32; ++i) {
      mma_16816<Elem>(s[j], tile.first.f[2 * i], first.v[i].x, first.v[i].y);
      mma_16816<Elem>(s[j], tile.first.f[2 * i + 1], first.v[i].z, first.v[i].w);
      mma_16816<Elem>(dp[j], tile.second.f[2 * i], second.v[i].x, second.v[i].y);
      mma_16816<Elem>(dp[j], tile.second.f[2 * i + 1], second.v[i].z, second.v[i].w);
    }
  }
  if (p.bias != nullptr) {
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int distance = far + 8 * j + 2 * t + (e & 1) - (own + g + 8 * (e >> 1));
        s[j][e] += bias_of(p, head, kKeys ? -distance : distance);
      }
  }
  // s becomes the (dropped) probability, dp becomes dS.
#pragma unroll
  for (int j = 0; j < 2; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int h = e >> 1, column = 8 * j + 2 * t + (e & 1);
      const int at = c0 + min(column, left);
      const float row_lse = kKeys ? lse[at] : lse[h], row_delta = kKeys ? delta[at] : delta[h];
      const int query = kKeys ? far + column : own + g + 8 * h, key = kKeys ? own + g + 8 * h : far + column;
      const bool unseen = column > left || (p.window > 0 && abs(query - key) > p.window);
      const float prob = unseen ? 0.0f : exp2_fast(fmaf(s[j][e], scale_log2, -row_lse));
      float factor = 1.0f;
      if (p.drop.threshold != 0) factor = kept.at(query, key) ? p.drop.scale : 0.0f;
      dp[j][e] = prob * (dp[j][e] * factor - row_delta);
      s[j][e] = prob * factor;
    }
}

template <class Elem, int D, bool kKeys, class Source, class Kept>
__device__ __forceinline__ void grad_chunk(GradTile<D>& tile, const Source& other, int c0, int left, const float* lse,
                                           const float* delta, const AttentionProblem& p, const Kept& kept, int own,
                                           int far, int head, int g, int t) {
  float s[2][4], dp[2][4];
  score_gradients<Elem, D, kKeys>(s, dp, tile, other, c0, left, lse, delta, p, kept, own, far, head, g, t);
  VRow<D> rows[4];
  uint32_t a[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] = pack2<Elem>(dp[i >> 1][2 * (i & 1)], dp[i >> 1][2 * (i & 1) + 1]);
#pragma unroll
  for (int r = 0; r < 4; ++r) rows[r] = other.deep(0, c0 + min(v_key(0, r, t), left), g);
  weigh_chunk<Elem, D>(tile.d_first, a, rows);
  if constexpr (kKeys) {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = pack2<Elem>(s[i >> 1][2 * (i & 1)], s[i >> 1][2 * (i & 1) + 1]);
#pragma unroll
    for (int r = 0; r < 4; ++r) rows[r] = other.deep(1, c0 + min(v_key(0, r, t), left), g);
    weigh_chunk<Elem, D>(tile.d_second, a, rows);
  }
}

// Own rows first + g and first + g + 8 of a tile to `to`, whose rows are counted from the sequence's first.
template <class Elem, int D>
__device__ __forceinline__ void store_grad(const Accum<D>& o, float factor, Elem* to, unsigned ld, int first, int rows,
                                           int g, int t) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = first + g + 8 * h;
    if (row >= rows) continue;
    float f[D / 4];
#pragma unroll
    for (int e = 0; e < 2; ++e)
#pragma unroll
      for (int j = 0; j < D / 8; ++j) f[D / 8 * e + j] = o.c[j][2 * h + e] * factor;
    auto* at = reinterpret_cast<uint4*>(to + static_cast<size_t>(row) * ld + D / 4 * t);
#pragma unroll
    for (int i = 0; i < D / 32; ++i)
      at[i] = make_uint4(pack2<Elem>(f[8 * i], f[8 * i + 1]), pack2<Elem>(f[8 * i + 2], f[8 * i + 3]),
                         pack2<Elem>(f[8 * i + 4], f[8 * i + 5]), pack2<Elem>(f[8 * i + 6], f[8 * i + 7]));
  }
}

// out · d_out of one query and head.
template <class Elem, int D>
__device__ __forceinline__ float row_delta(const Elem* out, const Elem* d_out) {
  float sum = 0.0f;
#pragma unroll
  for (int d = 0; d < D; d += 8) {
    float a[8], b[8];
    load8(out + d, a);
    load8(d_out + d, b);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = fmaf(a[i], b[i], sum);
  }
  return sum;
}

// A warp, one head of one sequence of up to 32 tokens.
template <class Elem, int D>
__global__ void __launch_bounds__(kThreads, 3) attention_grad_short_kernel(const GradProblem<Elem> x) {
  __shared__ float stats[kWarps][2][kShortTokens];
  __shared__ uint32_t words[kWarps][kShortTokens];
  const AttentionProblem& p = x.p;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane >> 2, t = lane & 3;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + warp;
  const int index = p.n_long + static_cast<int>(item / p.heads), head = static_cast<int>(item % p.heads);
  if (index >= p.B) return;
  const AttentionSequence seq = attention_sequence(p, index);
  const auto head_of = [&](auto rows, int first) {
    return rows.data + static_cast<size_t>(first) * rows.ld + head * D;
  };
  if (seq.kv_len == 0) {
    if (p.first_query_only)
      for (int d = lane; d < D; d += 32) head_of(x.d_q, seq.q_start)[d] = from_f32<Elem>(0.0f);
    return;
  }
  const Elem *q = head_of(x.q, seq.q_start), *k = head_of(x.k, seq.kv_start), *v = head_of(x.v, seq.kv_start),
             *d_out = head_of(x.d_out, seq.q_start);
  float *lse = stats[warp][0], *delta = stats[warp][1];
  {
    const int row = min(lane, seq.q_len - 1);
    lse[lane] = p.lse[static_cast<size_t>(seq.q_start + row) * p.heads + head] * kLog2e;
    delta[lane] = row_delta<Elem, D>(head_of(x.out, seq.q_start) + static_cast<size_t>(row) * x.out.ld,
                                     d_out + static_cast<size_t>(row) * x.d_out.ld);
    if (p.drop.threshold != 0) words[warp][lane] = kept_word(p, seq.q_start + row, head, 0);
  }
  __syncwarp();
  const KeptWords kept{words[warp], 1, 0, 0};
  GradTile<D> tile;
  const GlobalRows<Elem, D> keys{k, v, x.k.ld, x.v.ld}, queries{q, d_out, x.q.ld, x.d_out.ld};
#pragma unroll 1
  for (int first = 0; first < seq.q_len; first += 16) {
    load_q<Elem, D>(tile.first, q, x.q.ld, first, seq.q_len - 1, g, t);
    load_q<Elem, D>(tile.second, d_out, x.d_out.ld, first, seq.q_len - 1, g, t);
    clear(tile.d_first);
    const float row_lse[2] = {lse[first + g], lse[first + g + 8]},
                row_deltas[2] = {delta[first + g], delta[first + g + 8]};
#pragma unroll 1
    for (int c = 0; c < seq.kv_len; c += 16)
      grad_chunk<Elem, D, false>(tile, keys, c, min(15, seq.kv_len - 1 - c), row_lse, row_deltas, p, kept, first, c,
                                 head, g, t);
    store_grad<Elem, D>(tile.d_first, p.scale, head_of(x.d_q, seq.q_start), x.d_q.ld, first, seq.q_len, g, t);
  }
#pragma unroll 1
  for (int first = 0; first < seq.kv_len; first += 16) {
    load_q<Elem, D>(tile.first, k, x.k.ld, first, seq.kv_len - 1, g, t);
    load_q<Elem, D>(tile.second, v, x.v.ld, first, seq.kv_len - 1, g, t);
    clear(tile.d_first);
    clear(tile.d_second);
#pragma unroll 1
    for (int c = 0; c < seq.q_len; c += 16)
      grad_chunk<Elem, D, true>(tile, queries, c, min(15, seq.q_len - 1 - c), lse, delta, p, kept, first, c, head, g,
                                t);
    store_grad<Elem, D>(tile.d_first, p.scale, head_of(x.d_k, seq.kv_start), x.d_k.ld, first, seq.kv_len, g, t);
    store_grad<Elem, D>(tile.d_second, 1.0f, head_of(x.d_v, seq.kv_start), x.d_v.ld, first, seq.kv_len, g, t);
  }
}

// delta of the long sequences' queries: a thread a query and head.
template <class Elem, int D>
__global__ void __launch_bounds__(kThreads) attention_delta_kernel(const GradProblem<Elem> x) {
  const AttentionSequence seq = attention_sequence(x.p, static_cast<int>(blockIdx.x));
  for (int i = static_cast<int>(blockIdx.y) * kThreads + threadIdx.x; i < seq.q_len * x.p.heads;
       i += static_cast<int>(gridDim.y) * kThreads) {
    const size_t row = static_cast<size_t>(seq.q_start + i / x.p.heads);
    const int head = i % x.p.heads;
    x.delta[row * x.p.heads + head] =
        row_delta<Elem, D>(x.out.data + row * x.out.ld + head * D, x.d_out.data + row * x.d_out.ld + head * D);
  }
}

// One tile of 64 own rows of one head of one long sequence.
template <class Elem, int D, bool kKeys>
__device__ __forceinline__ void grad_tile(const GradProblem<Elem>& x, const AttentionSequence& seq, int head,
                                          int tile_index, uint8_t (*staged)[2][kTileRows * D * 2],
                                          float (*stats)[2][kTileRows], uint32_t (*words)[2], int warp, int g, int t) {
  const AttentionProblem& p = x.p;
  const auto head_of = [&](auto rows, int first) {
    return rows.data + static_cast<size_t>(first) * rows.ld + head * D;
  };
  const Elem *q = head_of(x.q, seq.q_start), *k = head_of(x.k, seq.kv_start), *v = head_of(x.v, seq.kv_start),
             *d_out = head_of(x.d_out, seq.q_start);
  const Elem *own_first = kKeys ? k : q, *own_second = kKeys ? v : d_out, *far_first = kKeys ? q : k,
             *far_second = kKeys ? d_out : v;
  const unsigned ld_own_first = kKeys ? x.k.ld : x.q.ld, ld_own_second = kKeys ? x.v.ld : x.d_out.ld,
                 ld_far_first = kKeys ? x.q.ld : x.k.ld, ld_far_second = kKeys ? x.d_out.ld : x.v.ld;
  const int own_len = kKeys ? seq.kv_len : seq.q_len, far_len = kKeys ? seq.q_len : seq.kv_len;
  const int first = tile_index * kTileRows + 16 * warp;
  // Windows reach as far one way as the other: what keys see of queries is what queries see of keys.
  const KeyRange seen = seen_keys(p.window, tile_index * kTileRows, kTileRows, far_len, kTileRows),
                 warp_seen = seen_keys(p.window, first, 16, far_len, 16);
  const int begin = seen.first / kTileRows, buffers = (seen.end + kTileRows - 1) / kTileRows;
  const bool active = first < own_len;
  const auto stage = [&](int b) {
    const int from = b * kTileRows, rows = min(kTileRows, far_len - from);
    stage_rows<Elem, D>(shared_address(staged[b & 1][0]), far_first + static_cast<size_t>(from) * ld_far_first,
                        ld_far_first, rows);
    stage_rows<Elem, D>(shared_address(staged[b & 1][1]), far_second + static_cast<size_t>(from) * ld_far_second,
                        ld_far_second, rows);
    copy_async_commit();
    if constexpr (kKeys)
      if (static_cast<int>(threadIdx.x) < rows) {
        const size_t at = static_cast<size_t>(seq.q_start + from + static_cast<int>(threadIdx.x)) * p.heads + head;
        stats[b & 1][0][threadIdx.x] = p.lse[at] * kLog2e;
        stats[b & 1][1][threadIdx.x] = x.delta[at];
      }
  };
  if (begin < buffers) stage(begin);
  GradTile<D> tile;
  clear(tile.d_first);
  clear(tile.d_second);
  float row_lse[2] = {0.0f, 0.0f}, row_deltas[2] = {0.0f, 0.0f};
  if (active) {
    load_q<Elem, D>(tile.first, own_first, ld_own_first, first, own_len - 1, g, t);
    load_q<Elem, D>(tile.second, own_second, ld_own_second, first, own_len - 1, g, t);
    if constexpr (!kKeys) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const size_t at = static_cast<size_t>(seq.q_start + min(first + g + 8 * h, own_len - 1)) * p.heads + head;
        row_lse[h] = p.lse[at] * kLog2e;
        row_deltas[h] = x.delta[at];
      }
    }
  }
#pragma unroll 1
  for (int b = begin; b < buffers; ++b) {
    if (b + 1 < buffers) {
      stage(b + 1);
      copy_async_wait<1>();
    } else {
      copy_async_wait<0>();
    }
    if (p.drop.threshold != 0) {  // a thread half a query's keys of this tile and buffer
      const int row = static_cast<int>(threadIdx.x) / 2, half = static_cast<int>(threadIdx.x) % 2,
                query = (kKeys ? b : tile_index) * kTileRows + row, key = (kKeys ? tile_index : b) * kTileRows;
      words[row][half] = kept_word(p, seq.q_start + query, head, key + 32 * half);
    }
    const KeptWords kept{words[0], 2, (kKeys ? b : tile_index) * kTileRows, (kKeys ? tile_index : b) * kTileRows};
    __syncthreads();
    if (active) {
      const int from = b * kTileRows, rows = min(kTileRows, far_len - from);
      const SharedRows<Elem, D> other{shared_address(staged[b & 1][0]), shared_address(staged[b & 1][1])};
      const float *lse = kKeys ? stats[b & 1][0] : row_lse, *delta = kKeys ? stats[b & 1][1] : row_deltas;
#pragma unroll 1
      for (int c = 0; c < rows; c += 16) {
        if (from + c < warp_seen.first || from + c >= warp_seen.end) continue;
        grad_chunk<Elem, D, kKeys>(tile, other, c, min(15, rows - 1 - c), lse, delta, p, kept, first, from + c, head, g,
                                   t);
      }
    }
    __syncthreads();  // before this buffer is filled again
  }
  if (!active) return;
  if constexpr (kKeys) {
    store_grad<Elem, D>(tile.d_first, p.scale, head_of(x.d_k, seq.kv_start), x.d_k.ld, first, own_len, g, t);
    store_grad<Elem, D>(tile.d_second, 1.0f, head_of(x.d_v, seq.kv_start), x.d_v.ld, first, own_len, g, t);
  } else {
    store_grad<Elem, D>(tile.d_first, p.scale, head_of(x.d_q, seq.q_start), x.d_q.ld, first, own_len, g, t);
  }
}

// Tiles first_tile .. first_tile + tiles - 1 of every long sequence, both passes. Each sequence has a tile 0, which is
// one launch of its own; the others are walked longest sequence first and end where none is left.
template <class Elem, int D>
__global__ void __launch_bounds__(kThreads, 2)
    attention_grad_tile_kernel(const GradProblem<Elem> x, int first_tile, int tiles) {
  __shared__ __align__(128) uint8_t staged[2][2][kTileRows * D * 2];
  __shared__ float stats[2][2][kTileRows];
  __shared__ uint32_t words[kTileRows][2];
  const AttentionProblem& p = x.p;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane >> 2, t = lane & 3;
  const int64_t items = static_cast<int64_t>(p.n_long) * tiles * 2 * p.heads;
#pragma unroll 1
  for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    const int head = static_cast<int>(item % p.heads), pass = static_cast<int>(item / p.heads % 2),
              tile = first_tile + static_cast<int>(item / p.heads / 2 % tiles);
    const AttentionSequence seq = attention_sequence(p, static_cast<int>(item / p.heads / 2 / tiles));
    if (p.order != nullptr && seq.kv_len <= first_tile * kTileRows) break;  // nor has any later one such a tile
    if (pass == 0 && tile * kTileRows < seq.q_len)
      grad_tile<Elem, D, false>(x, seq, head, tile, staged, stats, words, warp, g, t);
    if (pass == 1 && tile * kTileRows < seq.kv_len)
      grad_tile<Elem, D, true>(x, seq, head, tile, staged, stats, words, warp, g, t);
    if (seq.kv_len == 0 && p.first_query_only && pass == 0 && tile == 0)
      for (int d = threadIdx.x; d < D; d += kThreads)
        x.d_q.data[static_cast<size_t>(seq.q_start) * x.d_q.ld + head * D + d] = from_f32<Elem>(0.0f);
  }
}

// ---- the plain kernel: any head size up to 32 * kSlices, fp32 arithmetic, a warp an own row ----
template <class Elem, int kSlices, bool kKeys>
__global__ void __launch_bounds__(kThreads) attention_grad_plain_kernel(const GradProblem<Elem> x, int D) {
  const AttentionProblem& p = x.p;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int index = static_cast<int>(blockIdx.x) / p.heads, head = static_cast<int>(blockIdx.x) % p.heads;
  const AttentionSequence seq = attention_sequence(p, index);
  const int own_len = kKeys ? seq.kv_len : p.first_query_only ? 1 : seq.q_len, far_len = kKeys ? seq.q_len : seq.kv_len;
  const auto load = [&](auto rows, int row, float(&f)[kSlices]) {
#pragma unroll
    for (int i = 0; i < kSlices; ++i)
      f[i] =
          lane + 32 * i < D ? to_f32(rows.data[static_cast<size_t>(row) * rows.ld + head * D + lane + 32 * i]) : 0.0f;
  };
  const auto store = [&](auto rows, int row, const float(&f)[kSlices], float factor) {
#pragma unroll
    for (int i = 0; i < kSlices; ++i)
      if (lane + 32 * i < D)
        rows.data[static_cast<size_t>(row) * rows.ld + head * D + lane + 32 * i] = from_f32<Elem>(f[i] * factor);
  };
  const auto dot = [&](const float(&a)[kSlices], const float(&b)[kSlices]) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kSlices; ++i) sum = fmaf(a[i], b[i], sum);
    return warp_sum(sum);
  };
  for (int row = static_cast<int>(blockIdx.y) * kWarps + warp; row < own_len;
       row += static_cast<int>(gridDim.y) * kWarps) {
    float own_first[kSlices], own_second[kSlices], d_first[kSlices], d_second[kSlices], out[kSlices];
    const int own = (kKeys ? seq.kv_start : seq.q_start) + row;
    load(kKeys ? x.k : x.q, own, own_first);
    load(kKeys ? x.v : x.d_out, own, own_second);
    float lse = 0.0f, delta = 0.0f;
    if constexpr (!kKeys) {
      load(x.out, own, out);
      lse = p.lse[static_cast<size_t>(own) * p.heads + head];
      delta = dot(out, own_second);
    }
#pragma unroll
    for (int i = 0; i < kSlices; ++i) d_first[i] = d_second[i] = 0.0f;
    const KeyRange seen = seen_keys(p.window, row, 1, far_len, 1);
    for (int j = seen.first; j < seen.end; ++j) {
      float far_first[kSlices], far_second[kSlices];
      const int far = (kKeys ? seq.q_start : seq.kv_start) + j;
      load(kKeys ? x.q : x.k, far, far_first);
      load(kKeys ? x.d_out : x.v, far, far_second);
      if constexpr (kKeys) {
        load(x.out, far, out);
        lse = p.lse[static_cast<size_t>(far) * p.heads + head];
        delta = dot(out, far_second);
      }
      float score = dot(own_first, far_first);
      if (p.bias != nullptr) score += bias_of(p, head, kKeys ? row - j : j - row);
      const float prob = expf(score * p.scale - lse);
      float factor = 1.0f;
      if (p.drop.threshold != 0) {
        const int query = kKeys ? far : own, key = kKeys ? row : j;
        const uint64_t bits =
            dropout_bits(p.drop.seed, p.drop.site, drop_row(p, query, head), static_cast<uint32_t>(key) / 4);
        factor = dropout_keeps(bits, key, p.drop.threshold) ? p.drop.scale : 0.0f;
      }
      const float d_score = prob * (dot(own_second, far_second) * factor - delta);
#pragma unroll
      for (int i = 0; i < kSlices; ++i) {
        d_first[i] = fmaf(d_score, far_first[i], d_first[i]);
        if constexpr (kKeys) d_second[i] = fmaf(prob * factor, far_second[i], d_second[i]);
      }
    }
    store(kKeys ? x.d_k : x.d_q, own, d_first, p.scale);
    if constexpr (kKeys) store(x.d_v, own, d_second, 1.0f);
  }
}

// ---- the bias's gradient: sums of dS by distance. A warp takes 64 queries of one head of one sequence at a time and
// keeps a table of its own; a block's four tables are added in order, then the blocks'. Nothing depends on who is
// first ----
constexpr int kBiasQueries = 64;

// Adds the lanes' values to a warp's table; lanes' distances differ by one, so that only those beyond its reach meet.
__device__ __forceinline__ void add_by_distance(float* table, int reach, int distance, int lowest, float value,
                                                int lane) {
  if (distance > -reach && distance < reach) table[reach + distance] += value;
  if (lowest <= -reach) {  // the same for all lanes
    const float beyond = warp_sum(distance <= -reach ? value : 0.0f);
    if (lane == 0) table[0] += beyond;
  }
  if (lowest + 31 >= reach) {
    const float beyond = warp_sum(distance >= reach ? value : 0.0f);
    if (lane == 0) table[2 * reach] += beyond;
  }
  __syncwarp();  // the next query's distances are other lanes'
}

// Calls fn(seq, first query, queries) for what the warp takes of the batch, then adds the block's tables up.
template <class Elem, class Fn>
__device__ __forceinline__ void sum_by_distance(const GradProblem<Elem>& x, float (*tables)[kMaxBiasWidth], int head,
                                                int warp, Fn&& fn) {
  const AttentionProblem& p = x.p;
  const int width = 2 * p.reach + 1, pieces = p.first_query_only ? 1 : (p.S + kBiasQueries - 1) / kBiasQueries;
  for (int i = threadIdx.x; i < kWarps * width; i += kThreads) tables[i / width][i % width] = 0.0f;
  __syncthreads();
#pragma unroll 1
  for (int64_t item = static_cast<int64_t>(blockIdx.y) * kWarps + warp; item < static_cast<int64_t>(p.B) * pieces;
       item += static_cast<int64_t>(gridDim.y) * kWarps) {
    const AttentionSequence seq = attention_sequence(p, static_cast<int>(item / pieces));
    const int first = static_cast<int>(item % pieces) * kBiasQueries;
    if (first < seq.q_len) fn(seq, first, min(seq.q_len, first + kBiasQueries));
  }
  __syncthreads();
  float* sums = x.bias_sums + (static_cast<size_t>(blockIdx.y) * p.heads + head) * width;
  for (int i = threadIdx.x; i < width; i += kThreads) {
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += tables[w][i];
    sums[i] = sum;
  }
}

template <class Elem, int D>
__global__ void __launch_bounds__(kThreads, 3) attention_bias_grad_kernel(const GradProblem<Elem> x) {
  __shared__ float tables[kWarps][kMaxBiasWidth], squares[kWarps][16][17];
  const AttentionProblem& p = x.p;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane >> 2, t = lane & 3, head = blockIdx.x;
  float(*square)[17] = squares[warp];
  sum_by_distance(x, tables, head, warp, [&](const AttentionSequence& seq, int begin, int end) {
    const auto head_of = [&](auto rows, int first) {
      return rows.data + static_cast<size_t>(first) * rows.ld + head * D;
    };
    const Elem *q = head_of(x.q, seq.q_start), *d_out = head_of(x.d_out, seq.q_start),
               *out = head_of(x.out, seq.q_start);
    const GlobalRows<Elem, D> keys{head_of(x.k, seq.kv_start), head_of(x.v, seq.kv_start), x.k.ld, x.v.ld};
    GradTile<D> tile;
#pragma unroll 1
    for (int first = begin; first < end; first += 16) {
      load_q<Elem, D>(tile.first, q, x.q.ld, first, seq.q_len - 1, g, t);
      load_q<Elem, D>(tile.second, d_out, x.d_out.ld, first, seq.q_len - 1, g, t);
      float lse[2], delta[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = min(first + g + 8 * h, seq.q_len - 1);
        lse[h] = p.lse[static_cast<size_t>(seq.q_start + row) * p.heads + head] * kLog2e;
        delta[h] = row_delta<Elem, D>(out + static_cast<size_t>(row) * x.out.ld,
                                      d_out + static_cast<size_t>(row) * x.d_out.ld);
      }
#pragma unroll 1
      for (int c = 0; c < seq.kv_len; c += 16) {
        float s[2][4], ds[2][4];
        score_gradients<Elem, D, false>(s, ds, tile, keys, c, min(15, seq.kv_len - 1 - c), lse, delta, p,
                                        HashedKept{p, seq.q_start, head}, first, c, head, g, t);
#pragma unroll
        for (int j = 0; j < 2; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int row = g + 8 * (e >> 1);
            square[row][8 * j + 2 * t + (e & 1)] = first + row < end ? ds[j][e] : 0.0f;
          }
        __syncwarp();
        // A lane a diagonal: the keys are lane - 15 after their queries.
        float sum = 0.0f;
#pragma unroll
        for (int row = 0; row < 16; ++row) {
          const int column = row + lane - 15;
          if (column >= 0 && column < 16) sum += square[row][column];
        }
        __syncwarp();
        add_by_distance(tables[warp], p.reach, c - first + lane - 15, c - first - 15, sum, lane);
      }
    }
  });
}

// Any head size: a lane a key, fp32 arithmetic.
template <class Elem>
__global__ void __launch_bounds__(kThreads) attention_bias_grad_plain_kernel(const GradProblem<Elem> x, int D) {
  __shared__ float tables[kWarps][kMaxBiasWidth];
  const AttentionProblem& p = x.p;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = blockIdx.x;
  sum_by_distance(x, tables, head, warp, [&](const AttentionSequence& seq, int begin, int end) {
    const auto row_of = [&](auto rows, int row) { return rows.data + static_cast<size_t>(row) * rows.ld + head * D; };
    for (int query = begin; query < end; ++query) {
      const int row = seq.q_start + query;
      const Elem *q = row_of(x.q, row), *out = row_of(x.out, row), *d_out = row_of(x.d_out, row);
      float delta = 0.0f;
      for (int d = lane; d < D; d += 32) delta = fmaf(to_f32(out[d]), to_f32(d_out[d]), delta);
      delta = warp_sum(delta);
      const float lse = p.lse[static_cast<size_t>(row) * p.heads + head];
      for (int k0 = 0; k0 < seq.kv_len; k0 += 32) {
        const int key = min(k0 + lane, seq.kv_len - 1);
        const Elem *k = row_of(x.k, seq.kv_start + key), *v = row_of(x.v, seq.kv_start + key);
        float score = 0.0f, dp = 0.0f, factor = 1.0f;
        for (int d = 0; d < D; ++d) {
          score = fmaf(to_f32(q[d]), to_f32(k[d]), score);
          dp = fmaf(to_f32(d_out[d]), to_f32(v[d]), dp);
        }
        const float prob = expf((score + bias_of(p, head, key - query)) * p.scale - lse);
        if (p.drop.threshold != 0) {
          const uint64_t bits =
              dropout_bits(p.drop.seed, p.drop.site, drop_row(p, row, head), static_cast<uint32_t>(key) / 4);
          factor = dropout_keeps(bits, key, p.drop.threshold) ? p.drop.scale : 0.0f;
        }
        add_by_distance(tables[warp], p.reach, k0 + lane - query, k0 - query,
                        k0 + lane < seq.kv_len ? prob * (dp * factor - delta) : 0.0f, lane);
      }
    }
  });
}

// ---- launches ----
dim3 bias_grid(const AttentionProblem& p) {
  return dim3(static_cast<unsigned>(p.heads), static_cast<unsigned>(kBiasParts));
}
template <class Elem, int D>
void launch_tensor(device::CudaStream& s, const GradProblem<Elem>& x) {
  const AttentionProblem& p = x.p;
  const unsigned pairs = static_cast<unsigned>(p.heads) * 2;
  if (p.n_long > 0) {
    device::launch<attention_delta_kernel<Elem, D>>(
        s,
        dim3(static_cast<unsigned>(p.n_long),
             std::clamp(device::blocks_for(static_cast<int64_t>(p.first_query_only ? 1 : p.S) * p.heads, kThreads), 1u,
                        64u)),
        dim3(kThreads), x);
    const int tiles = static_cast<int>(device::blocks_for(p.S, kTileRows));
    if (tiles > 1)
      device::launch<attention_grad_tile_kernel<Elem, D>>(s, dim3(static_cast<unsigned>(s.info().sm_count) * 2),
                                                          dim3(kThreads), x, 1, tiles - 1);
    device::launch<attention_grad_tile_kernel<Elem, D>>(s, dim3(static_cast<unsigned>(p.n_long) * pairs),
                                                        dim3(kThreads), x, 0, 1);
  }
  device::launch<attention_grad_short_kernel<Elem, D>>(
      s, dim3(device::blocks_for(static_cast<int64_t>(p.B - p.n_long) * p.heads, kWarps)), dim3(kThreads), x);
  if (p.bias != nullptr) device::launch<attention_bias_grad_kernel<Elem, D>>(s, bias_grid(p), dim3(kThreads), x);
}
template <class Elem>
void launch_plain(device::CudaStream& s, const GradProblem<Elem>& x, int D) {
  BRIM_CHECK(D <= 128, "attention_grad: heads of {} dims, the CUDA kernels take up to 128", D);
  const dim3 grid(static_cast<unsigned>(x.p.B * x.p.heads), std::clamp(device::blocks_for(x.p.S, kWarps), 1u, 64u)),
      block(kThreads);
  const auto both = [&](auto slices) {
    constexpr int kSlices = decltype(slices)::value;
    device::launch<attention_grad_plain_kernel<Elem, kSlices, false>>(s, grid, block, x, D);
    device::launch<attention_grad_plain_kernel<Elem, kSlices, true>>(s, grid, block, x, D);
  };
  if (D <= 32)
    both(std::integral_constant<int, 1>{});
  else if (D <= 64)
    both(std::integral_constant<int, 2>{});
  else
    both(std::integral_constant<int, 4>{});
  if (x.p.bias != nullptr)
    device::launch<attention_bias_grad_plain_kernel<Elem>>(s, bias_grid(x.p), dim3(kThreads), x, D);
}

}  // namespace

void attention_grad_cuda(device::Stream& stream, const AttentionGradArgs& a) {
  cuda_op(stream, "attention_grad", [&](device::CudaStream& s) {
    const int D = static_cast<int>(a.q.cols() / a.heads);
    AttentionProblem p{};
    p.starts = a.batch.starts.as<int32_t>();
    p.order = a.batch.order.as<int32_t>();
    p.B = static_cast<int>(a.batch.B);
    p.S = static_cast<int>(a.batch.S > 0 ? a.batch.S : a.batch.T);
    p.n_long = static_cast<int>(p.order != nullptr ? a.batch.n_long : p.S > kShortTokens ? a.batch.B : 0);
    p.heads = static_cast<int>(a.heads);
    p.first_query_only = a.first_query_only;
    p.window = static_cast<int>(std::min<int64_t>(a.window, 1 << 30));
    p.scale = 1.0f / std::sqrt(static_cast<float>(D));
    p.lse = a.lse.as<float>();
    p.drop = dropout_mask(a.dropout);
    p.bias = a.bias.as<float>();
    p.reach = static_cast<int>(a.bias.cols() / 2);
    p.unscale = std::sqrt(static_cast<float>(D));
    const int64_t bias_floats = a.bias ? kBiasParts * a.bias.elements() : 0;
    bool aligned = true;
    for (const tensor::TensorView& v : {a.q, a.k, a.v, a.out, a.d_out, a.d_q, a.d_k, a.d_v})
      aligned = aligned && rows_aligned16(v);
    const bool tensor_cores =
        (a.q.dtype == tensor::DType::f16 || (a.q.dtype == tensor::DType::bf16 && s.info().bf16)) &&
        (D == 32 || D == 64) && aligned;
    if ((tensor_cores && p.n_long > 0) || a.bias) {
      const int64_t wanted = (a.out.rows() * a.heads + bias_floats) * static_cast<int64_t>(sizeof(float)),
                    given = a.scratch ? a.scratch.bytes() : 0;
      BRIM_CHECK(given >= wanted, "attention_grad: scratch has {} bytes, needs {}", given, wanted);
    }
    dispatch_elem(a.q.dtype, [&](auto tag) {
      using Elem = typename decltype(tag)::type;
      const auto in = [](const tensor::TensorView& v) {
        return Rows<const Elem>{static_cast<const Elem*>(v.data), static_cast<unsigned>(v.ld())};
      };
      const auto out = [](const tensor::TensorView& v) {
        return Rows<Elem>{static_cast<Elem*>(v.data), static_cast<unsigned>(v.ld())};
      };
      auto* sums = static_cast<float*>(a.scratch.data);
      const GradProblem<Elem> x{p,           in(a.q),    in(a.k),    in(a.v),    in(a.out),
                                in(a.d_out), out(a.d_q), out(a.d_k), out(a.d_v), sums + bias_floats,
                                sums};
      if constexpr (!std::is_same_v<Elem, float>) {
        if (tensor_cores && D == 64) return launch_tensor<Elem, 64>(s, x);
        if (tensor_cores) return launch_tensor<Elem, 32>(s, x);
      }
      launch_plain<Elem>(s, x, D);
    });
    if (a.bias)
      add_rows_cuda(s, static_cast<const float*>(a.scratch.data), kBiasParts, a.bias.elements(), 1,
                    a.d_bias.as<float>(), 0, false);
  });
}

}  // namespace brim::ops
