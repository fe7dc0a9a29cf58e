// SPDX-License-Identifier: Apache-2.0
// Gradient of attention with tables of distances, without atomics. Scores are recomputed from the log-sum-exp, tile by
// tile, three times: for the gradients of queries, of keys and values, and of the tables. A warp owns 16 rows of the
// result. Tables are summed over all sequences, in parts whose number depends on the longest one only. Other head sizes
// and element types use plain fp32 kernels with the same division of work.
#include "ops/cuda/attention_distance.cuh"
#include "ops/cuda/attention_grad.cuh"
#include "ops/kernel_table.h"

namespace brim::ops {
namespace {

constexpr int kGradWarps = 4, kGradThreads = 32 * kGradWarps;
constexpr int kGradSlices = 4;  // plain kernels: head sizes up to 128

template <class Elem>
struct DistanceGradProblem {
  DistanceProblem<Elem> x;
  Rows<const Elem> q, k, v, out, d_out;
  Rows<Elem> d_q, d_k, d_v;
  float* delta;     // [Tq, heads]
  float* partials;  // [parts][2][2 reach + 1][heads * D]: of distance_queries, of distance_keys
  int parts;
};

// D > 0: the head size, for rows aligned to 16 bytes.
template <class Elem, int D>
__global__ void __launch_bounds__(kGradThreads)
    distance_delta_kernel(DistanceGradProblem<Elem> a, int rows, int head_size) {
  const int i = static_cast<int>(blockIdx.x) * kGradThreads + static_cast<int>(threadIdx.x);
  if (i >= rows * a.x.p.heads) return;
  const int row = i / a.x.p.heads, head = i % a.x.p.heads;
  const Elem* out = a.out.data + static_cast<size_t>(row) * a.out.ld + head * head_size;
  const Elem* d_out = a.d_out.data + static_cast<size_t>(row) * a.d_out.ld + head * head_size;
  if constexpr (D > 0)
    a.delta[i] = row_delta<Elem, D>(out, d_out);
  else
    a.delta[i] = row_dot(out, d_out, head_size);
}

// ---- Tensor cores ----

// A warp's own rows: queries with their d_out, or keys with their values.
template <class Elem, int D, bool kKeys>
struct OwnTile {
  QTile<D> first, second;
  int start, last;              // position of row 0, last row of the sequence
  float lse[2], delta[2];       // rows g and g + 8, for queries
  const Elem *other, *other_2;  // first row of the sequence, at the head's column
  unsigned ld_other, ld_other_2;
  int other_last;  // last other row
};

template <class Elem, int D, bool kKeys>
__device__ __forceinline__ void load_own(OwnTile<Elem, D, kKeys>& own, const DistanceGradProblem<Elem>& a,
                                         const AttentionSequence& seq, int head, int start, int g, int t) {
  const auto at = [&](const Rows<const Elem>& rows, int first) {
    return rows.data + static_cast<size_t>(first) * rows.ld + head * D;
  };
  own.start = start;
  own.last = (kKeys ? seq.kv_len : seq.q_len) - 1;
  own.other_last = (kKeys ? seq.q_len : seq.kv_len) - 1;
  const Rows<const Elem>&first = kKeys ? a.k : a.q, &second = kKeys ? a.v : a.d_out, &other = kKeys ? a.q : a.k,
                   &other_2 = kKeys ? a.d_out : a.v;
  const int own_row = kKeys ? seq.kv_start : seq.q_start, other_row = kKeys ? seq.q_start : seq.kv_start;
  load_q<Elem, D>(own.first, at(first, own_row), first.ld, start, own.last, g, t);
  load_q<Elem, D>(own.second, at(second, own_row), second.ld, start, own.last, g, t);
  own.other = at(other, other_row);
  own.other_2 = at(other_2, other_row);
  own.ld_other = other.ld;
  own.ld_other_2 = other_2.ld;
  if constexpr (!kKeys) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = (own_row + min(start + g + 8 * h, own.last)) * a.x.p.heads + head;
      own.lse[h] = a.x.p.lse[row] * kLog2e;
      own.delta[h] = a.delta[row];
    }
  }
}

// Whether dropout keeps the probabilities of 16 queries and 16 keys: a lane hashes half of a query's keys and gets the
// bits of query lane & 15, one per key.
__device__ __forceinline__ uint32_t kept_bits(const AttentionProblem& p, int first_query_row, int head, int first_key,
                                              int lane) {
  const uint64_t row = drop_row(p, first_query_row + (lane & 15), head);
  const uint32_t quad = static_cast<uint32_t>(first_key) / 4 + 2 * (static_cast<uint32_t>(lane) >> 4);
  uint32_t mine = 0;
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const uint64_t bits = dropout_bits(p.drop.seed, p.drop.site, row, quad + static_cast<uint32_t>(n));
#pragma unroll
    for (int i = 0; i < 4; ++i) mine |= static_cast<uint32_t>(dropout_keeps(bits, i, p.drop.threshold)) << (4 * n + i);
  }
  const uint32_t other = __shfl_xor_sync(~0u, mine, 16);
  return lane < 16 ? mine | other << 8 : other | mine << 8;
}
// Factors of the elements of a tile in the layout of its scores.
template <bool kKeys>
__device__ __forceinline__ void kept_factors(float (&factor)[2][4], const AttentionProblem& p, int first_query_row,
                                             int head, int first_key, int g, int t) {
  const uint32_t bits = p.drop.threshold != 0 ? kept_bits(p, first_query_row, head, first_key, 4 * g + t) : 0;
#pragma unroll
  for (int n = 0; n < 2; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int own = g + 8 * (i >> 1), far = 8 * n + 2 * t + (i & 1);
      if (p.drop.threshold == 0) {
        factor[n][i] = 1.0f;
        continue;
      }
      const uint32_t word = __shfl_sync(~0u, bits, kKeys ? far : own);
      factor[n][i] = (word >> (kKeys ? own : far) & 1) != 0 ? p.drop.scale : 0.0f;
    }
}

// (Dropped) probabilities s and gradients of the scaled scores d of the own rows and other rows at .. at + 15.
template <class Elem, int D, bool kKeys>
__device__ __forceinline__ void distance_score_gradients(float (&s)[2][4], float (&d)[2][4],
                                                         const OwnTile<Elem, D, kKeys>& own, TableBlock<D>& before,
                                                         DistanceRings& rings, const DistanceGradProblem<Elem>& a,
                                                         const AttentionSequence& seq, int head, int at, int g, int t) {
  const AttentionProblem& p = a.x.p;
  const Side<Elem, kKeys> side{a.x};
  KRow<D> row[2];
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const int other = min(at + 8 * n + g, own.other_last);
    row[n] = load_k<Elem, D>(own.other, own.ld_other, other, t);
    score_tile<Elem, D>(d[n], own.second, load_k<Elem, D>(own.other_2, own.ld_other_2, other, t));
  }
  score_distances<Elem, D>(s[0], s[1], before, rings, own.first, row[0], row[1], side, head, (at - own.start) / 16, g,
                           t);
  float factor[2][4];
  kept_factors<kKeys>(factor, p, seq.q_start + (kKeys ? at : own.start), head, kKeys ? own.start : at, g, t);
#pragma unroll
  for (int n = 0; n < 2; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int mine = own.start + g + 8 * (i >> 1), far = at + 8 * n + 2 * t + (i & 1);
      const bool valid = mine <= own.last && far <= own.other_last;
      float lse = 0.0f, delta = 0.0f;
      if constexpr (kKeys) {
        const int row_of_query = seq.q_start + min(far, own.other_last);
        lse = p.lse[row_of_query * p.heads + head] * kLog2e;
        delta = a.delta[row_of_query * p.heads + head];
      } else {
        lse = own.lse[i >> 1];
        delta = own.delta[i >> 1];
      }
      const float prob = valid ? exp2_fast(fmaf(s[n][i], p.scale * kLog2e, -lse)) : 0.0f;
      d[n][i] = prob * (d[n][i] * factor[n][i] - delta);
      s[n][i] = prob * factor[n][i];
    }
}

template <class Elem>
__device__ __forceinline__ void pack_tile(uint32_t (&f)[4], const float (&s)[2][4]) {
#pragma unroll
  for (int n = 0; n < 2; ++n)
#pragma unroll
    for (int h = 0; h < 2; ++h) f[2 * n + h] = pack2<Elem>(s[n][2 * h], s[n][2 * h + 1]);
}
// o += f times 16 rows from `at` on.
template <class Elem, int D, class RowOf>
__device__ __forceinline__ void weigh_rows(Accum<D>& o, const uint32_t (&f)[4], const Elem* data, unsigned ld,
                                           const RowOf& row_of, int g, int t) {
  VRow<D> rows[4];
#pragma unroll
  for (int r = 0; r < 4; ++r) rows[r] = load_v<Elem, D>(data, ld, row_of(v_key(0, r, t)), g);
  Probs probs;
#pragma unroll
  for (int i = 0; i < 4; ++i) probs.f[0][i] = f[i];
  weigh_step<Elem, D>(o, probs, 0, rows);
}

// Moves the gradients of scores to columns by distance; the other half becomes zero. Rows of the ring are own rows, or
// other rows with kByOther.
template <bool kByOther>
__device__ __forceinline__ void skew(DistanceRing& ring, const float (&d)[2][4], int e, int g, int t) {
#pragma unroll
  for (int n = 0; n < 2; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int own = g + 8 * (i >> 1), far = 8 * n + 2 * t + (i & 1), column = (16 * e + far - own) & 31;
      float* row = ring.value[kByOther ? far : own];
      row[column] = d[n][i];
      row[(column + 16) & 31] = 0.0f;
    }
}

template <class Elem, int D>
__device__ __forceinline__ void store_gradient(const Accum<D>& o, const Rows<Elem>& to, float factor, int first_row,
                                               int start, int last, int head, int g, int t) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = start + g + 8 * h;
    if (row > last) continue;
    Elem* at = to.data + static_cast<size_t>(first_row + row) * to.ld + head * D + D / 4 * t;
#pragma unroll
    for (int e = 0; e < 2; ++e)
#pragma unroll
      for (int j = 0; j < D / 8; j += 2)
        *reinterpret_cast<uint32_t*>(at + D / 8 * e + j) =
            pack2<Elem>(o.c[j][2 * h + e] * factor, o.c[j + 1][2 * h + e] * factor);
  }
}

// One warp: d_q of 16 queries, or d_k and d_v of 16 keys.
template <class Elem, int D, bool kKeys>
__device__ __forceinline__ void row_gradients(const DistanceGradProblem<Elem>& a, const AttentionSequence& seq,
                                              int head, int start, DistanceRings& rings, int g, int t) {
  const Side<Elem, kKeys> side{a.x};
  OwnTile<Elem, D, kKeys> own;
  load_own<Elem, D, kKeys>(own, a, seq, head, start, g, t);
  TableBlock<D> before;
  begin_walk<Elem, D>(before, rings, own.first, side, head, -start / 16, g, t);
  Accum<D> d_own, d_values;
  clear(d_own);
  clear(d_values);
#pragma unroll 1
  for (int at = 0; at <= own.other_last; at += 16) {
    const int e = (at - start) / 16;
    float s[2][4], d[2][4];
    distance_score_gradients<Elem, D, kKeys>(s, d, own, before, rings, a, seq, head, at, g, t);
    uint32_t f[4];
    pack_tile<Elem>(f, d);
    const auto other_row = [&](int r) { return min(at + r, own.other_last); };
    weigh_rows<Elem, D>(d_own, f, own.other, own.ld_other, other_row, g, t);
    if constexpr (kKeys) {
      pack_tile<Elem>(f, s);
      weigh_rows<Elem, D>(d_values, f, own.other_2, own.ld_other_2, other_row, g, t);
    }
    if (side.own().data == nullptr) continue;
    // The products of the own rows with block e are still needed, so the other ring is used.
    skew<false>(rings.other, d, e, g, t);
    __syncwarp();
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int block = e - 1 + n;
      const float* from = &rings.other.value[g][16 * (block & 1) + 2 * t];
      f[0] = pack2<Elem>(from[0], from[1]);
      f[1] = pack2<Elem>(from[8 * kRingLd], from[8 * kRingLd + 1]);
      f[2] = pack2<Elem>(from[8], from[9]);
      f[3] = pack2<Elem>(from[8 * kRingLd + 8], from[8 * kRingLd + 9]);
      weigh_rows<Elem, D>(
          d_own, f, side.own().data + head * D, side.own().ld, [&](int r) { return side.row(16 * block + r); }, g, t);
    }
    __syncwarp();
  }
  const Rows<Elem>& to = kKeys ? a.d_k : a.d_q;
  store_gradient(d_own, to, a.x.p.scale, kKeys ? seq.kv_start : seq.q_start, start, own.last, head, g, t);
  if constexpr (kKeys) store_gradient(d_values, a.d_v, 1.0f, seq.kv_start, start, own.last, head, g, t);
}

template <class Elem, int D, bool kKeys>
__global__ void __launch_bounds__(kGradThreads)
    distance_row_grad_kernel(const DistanceGradProblem<Elem> a, int long_parts) {
  __shared__ DistanceRings rings[kGradWarps];
  const AttentionProblem& p = a.x.p;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const TileWork work = tile_work<kGradWarps>(p, long_parts, static_cast<int>(blockIdx.x), warp);
  if (work.index >= p.B) return;
  const AttentionSequence seq = attention_sequence(p, work.index);
  if (!kKeys && p.first_query_only && seq.q_len == 0 && work.tile == 0)
    for (int d = lane; d < D; d += 32)
      a.d_q.data[static_cast<size_t>(seq.q_start) * a.d_q.ld + work.head * D + d] = from_f32<Elem>(0.0f);
  const int rows = kKeys ? seq.kv_len : seq.q_len;
#pragma unroll 1
  for (int tile = work.tile; 16 * tile < rows; tile += work.step)
    row_gradients<Elem, D, kKeys>(a, seq, work.head, 16 * tile, rings[warp], lane >> 2, lane & 3);
}

// sum += (16 distances of block `block` of the ring)ᵀ times the 16 rows of the ring.
template <class Elem, int D, class RowOf>
__device__ __forceinline__ void add_distances(Accum<D>& sum, const DistanceRing& ring, int block,
                                              const Rows<const Elem>& rows, int first_row, int head,
                                              const RowOf& row_of, int g, int t) {
  const auto value = [&](int row, int column) { return ring.value[row][16 * (block & 1) + column]; };
  uint32_t f[4];
  f[0] = pack2<Elem>(value(2 * t, g), value(2 * t + 1, g));
  f[1] = pack2<Elem>(value(2 * t, g + 8), value(2 * t + 1, g + 8));
  f[2] = pack2<Elem>(value(2 * t + 8, g), value(2 * t + 9, g));
  f[3] = pack2<Elem>(value(2 * t + 8, g + 8), value(2 * t + 9, g + 8));
  weigh_rows<Elem, D>(sum, f, rows.data + static_cast<size_t>(first_row) * rows.ld + head * D, rows.ld, row_of, g, t);
}
template <class Elem, int D>
__device__ __forceinline__ void store_part(const Accum<D>& sum, const DistanceGradProblem<Elem>& a, int part, bool keys,
                                           int head, int block, int g, int t) {
  const AttentionProblem& p = a.x.p;
  const int table_rows = 2 * p.reach + 1, H = p.heads * D;
  float* to = a.partials + (static_cast<size_t>(part) * 2 + (keys ? 1 : 0)) * table_rows * H + head * D + D / 4 * t;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = p.reach + 16 * block + g + 8 * h;
    if (row < 0 || row >= table_rows) continue;
#pragma unroll
    for (int e = 0; e < 2; ++e)
#pragma unroll
      for (int j = 0; j < D / 8; ++j) to[static_cast<size_t>(row) * H + D / 8 * e + j] = sum.c[j][2 * h + e] * p.scale;
  }
}

// One warp: 16 rows of both tables, one head, the sequences of a part. Short distances, which most pairs have, first.
template <class Elem, int D>
__global__ void __launch_bounds__(kGradThreads, 3)
    distance_table_grad_kernel(const DistanceGradProblem<Elem> a, int blocks) {
  __shared__ DistanceRings all_rings[kGradWarps];
  const AttentionProblem& p = a.x.p;
  const Side<Elem, false> side{a.x};
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane >> 2, t = lane & 3;
  const int item = static_cast<int>(blockIdx.x) * kGradWarps + warp;
  if (item >= blocks * a.parts * p.heads) return;
  const int part = item % a.parts, head = item / a.parts % p.heads, rank = item / a.parts / p.heads;
  const int block = (rank & 1) != 0 ? -(rank + 1) / 2 : rank / 2;
  DistanceRings& rings = all_rings[warp];
  Accum<D> of_queries, of_keys;
  clear(of_queries);
  clear(of_keys);
  for (int index = part; index < p.B; index += a.parts) {
    const AttentionSequence seq = attention_sequence(p, index);
#pragma unroll 1
    for (int start = 0; start < seq.q_len; start += 16)
#pragma unroll 1
      for (int e = block; e <= block + 1; ++e) {  // tiles with distances of this block
        const int at = start + 16 * e;
        if (at < 0 || at >= seq.kv_len) continue;
        OwnTile<Elem, D, false> own;
        load_own<Elem, D, false>(own, a, seq, head, start, g, t);
        TableBlock<D> before;
        begin_walk<Elem, D>(before, rings, own.first, side, head, e, g, t);
        float s[2][4], d[2][4];
        distance_score_gradients<Elem, D, false>(s, d, own, before, rings, a, seq, head, at, g, t);
        skew<false>(rings.own, d, e, g, t);
        skew<true>(rings.other, d, e, g, t);
        __syncwarp();
        if (a.x.keys.data != nullptr)
          add_distances<Elem, D>(
              of_keys, rings.own, block, a.q, seq.q_start, head, [&](int r) { return min(start + r, own.last); }, g, t);
        if (a.x.queries.data != nullptr)
          add_distances<Elem, D>(
              of_queries, rings.other, block, a.k, seq.kv_start, head,
              [&](int r) { return min(at + r, own.other_last); }, g, t);
        __syncwarp();
      }
  }
  store_part(of_queries, a, part, false, head, block, g, t);
  store_part(of_keys, a, part, true, head, block, g, t);
}

// ---- Plain kernels ----

// Gradient of the scaled score of a query and a key; `prob` becomes its (dropped) probability.
template <class Elem>
__device__ __forceinline__ float plain_gradient(const DistanceGradProblem<Elem>& a, const AttentionSequence& seq,
                                                int head, int query, int key, int D, float& prob) {
  const AttentionProblem& p = a.x.p;
  const int row = seq.q_start + query, far = seq.kv_start + key, column = head * D;
  const float score = plain_score(a.x, a.q.data + static_cast<size_t>(row) * a.q.ld + column,
                                  a.k.data + static_cast<size_t>(far) * a.k.ld + column, query, key, column, D);
  const float weight = expf(score * p.scale - p.lse[static_cast<size_t>(row) * p.heads + head]);
  const float factor = plain_factor(p, row, head, key);
  const float d = row_dot(a.d_out.data + static_cast<size_t>(row) * a.d_out.ld + column,
                          a.v.data + static_cast<size_t>(far) * a.v.ld + column, D);
  prob = weight * factor;
  return weight * (d * factor - a.delta[static_cast<size_t>(row) * p.heads + head]);
}

// A warp per query or, with kKeys, per key; lanes are other rows for the scores and dims for the sums.
template <class Elem, bool kKeys>
__global__ void __launch_bounds__(kGradThreads)
    distance_row_grad_plain_kernel(const DistanceGradProblem<Elem> a, int D) {
  const AttentionProblem& p = a.x.p;
  const Side<Elem, kKeys> side{a.x};
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int index = static_cast<int>(blockIdx.x) / p.heads, head = static_cast<int>(blockIdx.x) % p.heads;
  const AttentionSequence seq = attention_sequence(p, index);
  const int rows = kKeys ? seq.kv_len : p.first_query_only ? 1 : seq.q_len, others = kKeys ? seq.q_len : seq.kv_len;
  const Rows<const Elem>& first = kKeys ? a.q : a.k;
  const int first_other = kKeys ? seq.q_start : seq.kv_start;
  for (int own = static_cast<int>(blockIdx.y) * kGradWarps + warp; own < rows;
       own += static_cast<int>(gridDim.y) * kGradWarps) {
    float d_own[kGradSlices] = {}, d_values[kGradSlices] = {};
    for (int j0 = 0; j0 < others; j0 += 32) {
      const int j = min(j0 + lane, others - 1);
      float prob, d = plain_gradient(a, seq, head, kKeys ? j : own, kKeys ? own : j, D, prob);
      for (int n = 0; n < min(32, others - j0); ++n) {
        const float weight = __shfl_sync(~0u, d, n), kept = __shfl_sync(~0u, prob, n);
        const size_t far = static_cast<size_t>(first_other + j0 + n);
        const Elem* table = side.own().data;
        if (table != nullptr) table += static_cast<size_t>(side.row(j0 + n - own)) * side.own().ld + head * D;
        for (int i = 0; i < kGradSlices; ++i) {
          const int dim = lane + 32 * i;
          if (dim >= D) continue;
          d_own[i] = fmaf(weight, to_f32(first.data[far * first.ld + head * D + dim]), d_own[i]);
          if (table != nullptr) d_own[i] = fmaf(weight, to_f32(table[dim]), d_own[i]);
          if constexpr (kKeys)
            d_values[i] = fmaf(kept, to_f32(a.d_out.data[far * a.d_out.ld + head * D + dim]), d_values[i]);
        }
      }
    }
    const size_t row = static_cast<size_t>((kKeys ? seq.kv_start : seq.q_start) + own);
    const Rows<Elem>& to = kKeys ? a.d_k : a.d_q;
    for (int i = 0; i < kGradSlices; ++i) {
      const int dim = head * D + lane + 32 * i;
      if (lane + 32 * i >= D) continue;
      to.data[row * to.ld + dim] = from_f32<Elem>(d_own[i] * p.scale);
      if constexpr (kKeys) a.d_v.data[row * a.d_v.ld + dim] = from_f32<Elem>(d_values[i]);
    }
  }
}

// A warp per row of a table, head and part; lanes are pairs of tokens for the scores and dims for the sums.
template <class Elem, bool kKeys>
__global__ void __launch_bounds__(kGradThreads)
    distance_table_grad_plain_kernel(const DistanceGradProblem<Elem> a, int D) {
  const AttentionProblem& p = a.x.p;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, table_rows = 2 * p.reach + 1;
  const int item = static_cast<int>(blockIdx.x) * kGradWarps + warp;
  if (item >= table_rows * a.parts * p.heads) return;
  const int head = item / (table_rows * a.parts), part = item / table_rows % a.parts, row = item % table_rows;
  const int distance = row - p.reach;  // key position - query position
  const Rows<const Elem>& rows = kKeys ? a.k : a.q;
  float sum[kGradSlices] = {};
  for (int index = part; index < p.B; index += a.parts) {
    const AttentionSequence seq = attention_sequence(p, index);
    const int begin = max(0, -distance), end = min(seq.q_len, seq.kv_len - distance);  // queries with such a key
    for (int i0 = begin; i0 < end; i0 += 32) {
      const int query = min(i0 + lane, end - 1);
      float prob;
      const float d = plain_gradient(a, seq, head, query, query + distance, D, prob);
      for (int n = 0; n < min(32, end - i0); ++n) {
        const float weight = __shfl_sync(~0u, d, n);
        const size_t from = static_cast<size_t>(kKeys ? seq.kv_start + i0 + n + distance : seq.q_start + i0 + n);
        for (int i = 0; i < kGradSlices; ++i)
          if (lane + 32 * i < D)
            sum[i] = fmaf(weight, to_f32(rows.data[from * rows.ld + head * D + lane + 32 * i]), sum[i]);
      }
    }
  }
  const int H = p.heads * D;
  float* to = a.partials + ((static_cast<size_t>(part) * 2 + (kKeys ? 0 : 1)) * table_rows + row) * H + head * D;
  for (int i = 0; i < kGradSlices; ++i)
    if (lane + 32 * i < D) to[lane + 32 * i] = sum[i] * p.scale;
}

__global__ void __launch_bounds__(kGradThreads)
    add_parts_kernel(const float* partials, int64_t part_floats, int parts, float* out, int64_t ld, int rows, int H) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kGradThreads + threadIdx.x;
  if (i >= static_cast<int64_t>(rows) * H) return;
  float sum = 0.0f;
  for (int part = 0; part < parts; ++part) sum += partials[part * part_floats + i];
  out[i / H * ld + i % H] = sum;
}

// ---- Launches ----
template <class Elem, int D>
void launch_tensor_gradients(device::CudaStream& s, const DistanceGradProblem<Elem>& a, int queries) {
  const AttentionProblem& p = a.x.p;
  const dim3 block(kGradThreads);
  device::launch<distance_delta_kernel<Elem, D>>(s, dim3(device::blocks_for(int64_t{queries} * p.heads, kGradThreads)),
                                                 block, a, queries, D);
  const int own = long_parts<kGradWarps>(p.first_query_only ? 1 : p.S), keys = long_parts<kGradWarps>(p.S);
  device::launch<distance_row_grad_kernel<Elem, D, false>>(s, tile_blocks<kGradWarps>(p, own), block, a, own);
  device::launch<distance_row_grad_kernel<Elem, D, true>>(s, tile_blocks<kGradWarps>(p, keys), block, a, keys);
  const int blocks = 2 * (p.reach / 16 + 1);
  device::launch<distance_table_grad_kernel<Elem, D>>(
      s, dim3(device::blocks_for(int64_t{blocks} * a.parts * p.heads, kGradWarps)), block, a, blocks);
}

template <class Elem>
void launch_plain_gradients(device::CudaStream& s, const DistanceGradProblem<Elem>& a, int D, int queries) {
  BRIM_CHECK(D <= 32 * kGradSlices, "attention_grad: head size is {}, the CUDA kernels support up to {}", D,
             32 * kGradSlices);
  const AttentionProblem& p = a.x.p;
  const dim3 block(kGradThreads),
      grid(static_cast<unsigned>(p.B * p.heads), std::clamp(device::blocks_for(p.S, kGradWarps), 1u, 64u));
  device::launch<distance_delta_kernel<Elem, 0>>(s, dim3(device::blocks_for(int64_t{queries} * p.heads, kGradThreads)),
                                                 block, a, queries, D);
  device::launch<distance_row_grad_plain_kernel<Elem, false>>(s, grid, block, a, D);
  device::launch<distance_row_grad_plain_kernel<Elem, true>>(s, grid, block, a, D);
  const dim3 tables(device::blocks_for(int64_t{2 * p.reach + 1} * a.parts * p.heads, kGradWarps));
  if (a.x.keys.data != nullptr) device::launch<distance_table_grad_plain_kernel<Elem, false>>(s, tables, block, a, D);
  if (a.x.queries.data != nullptr) device::launch<distance_table_grad_plain_kernel<Elem, true>>(s, tables, block, a, D);
}

}  // namespace

void attention_distance_grad_cuda(device::CudaStream& s, const AttentionGradArgs& args) {
  const int D = static_cast<int>(args.q.cols() / args.heads), H = static_cast<int>(args.q.cols());
  const AttentionProblem p = distance_problem(args);
  const int rows = 2 * p.reach + 1, queries = static_cast<int>(args.out.rows());
  const int64_t part_floats = int64_t{2} * rows * H, delta_floats = int64_t{queries} * p.heads;
  const int64_t given = args.scratch ? args.scratch.bytes() / static_cast<int64_t>(sizeof(float)) : 0;
  const auto parts = static_cast<int>(distance_parts(rows));
  BRIM_CHECK(given >= delta_floats + parts * part_floats, "attention_grad: scratch has {} floats, needs {}", given,
             delta_floats + parts * part_floats);
  bool tensor_cores = (args.q.dtype == tensor::DType::f16 || (args.q.dtype == tensor::DType::bf16 && s.info().bf16)) &&
                      (D == 32 || D == 64);
  for (const tensor::TensorView& v : {args.q, args.k, args.v, args.out, args.d_out, args.d_q, args.d_k, args.d_v,
                                      args.distance_queries, args.distance_keys})
    tensor_cores = tensor_cores && (!v || rows_aligned16(v));
  auto* scratch = static_cast<float*>(args.scratch.data);
  dispatch_elem(args.q.dtype, [&](auto tag) {
    using Elem = typename decltype(tag)::type;
    const auto in = [](const tensor::TensorView& v) {
      return Rows<const Elem>{static_cast<const Elem*>(v.data), static_cast<unsigned>(v.ld())};
    };
    const auto out = [](const tensor::TensorView& v) {
      return Rows<Elem>{static_cast<Elem*>(v.data), static_cast<unsigned>(v.ld())};
    };
    const DistanceGradProblem<Elem> a{
        {p, distance_table<Elem>(args.distance_queries), distance_table<Elem>(args.distance_keys)},
        in(args.q),
        in(args.k),
        in(args.v),
        in(args.out),
        in(args.d_out),
        out(args.d_q),
        out(args.d_k),
        out(args.d_v),
        scratch,
        scratch + delta_floats,
        parts};
    if constexpr (!std::is_same_v<Elem, float>) {
      if (tensor_cores && D == 64) return launch_tensor_gradients<Elem, 64>(s, a, queries);
      if (tensor_cores) return launch_tensor_gradients<Elem, 32>(s, a, queries);
    }
    launch_plain_gradients<Elem>(s, a, D, queries);
  });
  const auto add_parts = [&](const tensor::TensorView& to, int64_t first) {
    if (to)
      device::launch<add_parts_kernel>(s, dim3(device::blocks_for(int64_t{rows} * H, kGradThreads)), dim3(kGradThreads),
                                       scratch + delta_floats + first, part_floats, parts, to.as<float>(), to.ld(),
                                       rows, H);
  };
  add_parts(args.d_distance_queries, 0);
  add_parts(args.d_distance_keys, int64_t{rows} * H);
}

}  // namespace brim::ops
