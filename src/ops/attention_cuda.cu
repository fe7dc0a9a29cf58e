// SPDX-License-Identifier: Apache-2.0
// Packed attention with one strategy per sequence length:
//  - up to 32 tokens: a warp computes one head of one sequence entirely in registers, without barriers (most tweets, at
//    99 % of copy bandwidth);
//  - up to 128: a block computes several heads of one sequence in turn, with K and V of a head in shared memory and 16
//    queries per warp. Up to 64 tokens the next head is prefetched: loads, products and stores of one head form a
//    dependency chain that four blocks per multiprocessor did not hide;
//  - longer: 128 queries per block, 32 per warp, so that each staged fragment feeds two products; K and V stream
//    through three buffers. A persistent grid iterates over the sequences, longest first, and stops at the first short
//    one.
// Rotary embeddings are applied to queries in registers and to keys while they are loaded, except for keys of long
// sequences, which are read by one block per 128 queries and therefore rotated beforehand: rotating them is a third of
// a chunk's instructions.
// Other head sizes and element types use a plain fp32 kernel. Tried without gain: skipping per eight keys, one launch
// per class of short sequences.
#include "ops/cuda/attention_distance.cuh"
#include "ops/cuda/attention_turn.cuh"
#include "ops/kernel_table.h"

namespace brim::ops {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kMediumKeys = 128;  // longest sequence staged as a whole
constexpr int kLongKeys = 64;     // keys per buffer of the long kernel
constexpr int kLongBuffers = 3;   // one in use, two being loaded
constexpr int kLongQueries = 32 * kWarps;
constexpr float kLog2e = 1.44269504f;

// Output scale: that of fp8 times that of dropout.
template <AttentionMode kMode>
__device__ __forceinline__ float output_scale(const AttentionProblem& p) {
  if (writes_fp8<kMode>(p)) return *p.out_scale;
  return keeps_statistics(kMode) ? p.drop.scale : 1.0f;
}

// The query of an empty sequence (only a first query can be one) attends to nothing: store zeros.
template <class Elem, int D, AttentionMode kMode>
__device__ __forceinline__ void store_empty(void* out, const AttentionProblem& p, int row, int head, int lane) {
  for (int d = lane; d < D; d += 32) {
    const size_t at = static_cast<size_t>(row) * p.ldo + head * D + d;
    if (writes_fp8<kMode>(p))
      static_cast<uint8_t*>(out)[at] = 0;
    else
      static_cast<Elem*>(out)[at] = from_f32<Elem>(0.0f);
  }
  if (keeps_statistics(kMode) && p.lse != nullptr && lane == 0)
    p.lse[static_cast<size_t>(row) * p.heads + head] = -INFINITY;
}

// One warp: up to 32 queries and keys, all loaded at once.
template <class Elem, int D, AttentionMode kMode>
__device__ __forceinline__ void short_sequence(const Elem* q, const Elem* k, const Elem* v, void* out,
                                               const AttentionProblem& p, const AttentionSequence& seq, int head, int g,
                                               int t) {
  const int last_q = seq.q_len - 1, last_k = seq.kv_len - 1, tiles = (seq.q_len + 15) / 16;
  const float scale_log2 = p.scale * kLog2e, out_scale = output_scale<kMode>(p);
  QTile<D> qt[2];
  KRow<D> kr[4];
  VRow<D> vr[2][4];
  Probs probs[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) load_q<Elem, D>(qt[i], q, p.ldq, 16 * i, last_q, g, t);
#pragma unroll
  for (int j = 0; j < 4; ++j) kr[j] = load_k<Elem, D>(k, p.ldkv, min(8 * j + g, last_k), t);
#pragma unroll
  for (int s = 0; s < 2; ++s)
#pragma unroll
    for (int r = 0; r < 4; ++r) vr[s][r] = load_v<Elem, D>(v, p.ldkv, min(v_key(s, r, t), last_k), g);
  if constexpr (kMode == AttentionMode::rotary) {
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (j < 2 || last_k >= 16) {
        const Turn turn = load_turn<D>(p.turns, min(8 * j + g, last_k), first_pair<D>(t));
        turn_key<Elem, D>(kr[j], turn, t);
        if (!p.first_query_only) turn_query<Elem, D>(qt[j / 2], j & 1, turn, t);
      }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i)
    if (i < tiles) {
      float s[4][4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        s[j][0] = s[j][1] = s[j][2] = s[j][3] = -INFINITY;
        if (j < 2 || last_k >= 16) {
          score_tile<Elem, D>(s[j], qt[i], kr[j]);
          mask_eight(s[j], j, last_k, t);
        }
      }
      if constexpr (kMode == AttentionMode::biased) add_bias(s, p, head, 16 * i + g, 0, t);
      if (p.window > 0) mask_window(s, p.window, 16 * i + g, 0, t);
      const float2 lse = softmax_whole(s, scale_log2, out_scale);
      if constexpr (keeps_statistics(kMode)) {
        if (p.lse != nullptr) store_lse({lse.x, lse.y}, p, seq, 16 * i, head, g, t);
        if (p.drop.threshold != 0)
          drop_probabilities(s, drop_lane(p, seq.q_start + 16 * i + g, head, t), p.drop.site, 0, t);
      }
      pack_probabilities<Elem>(probs[i], s);
    }
  const float one[2] = {1.0f, 1.0f};
#pragma unroll
  for (int i = 0; i < 2; ++i)
    if (i < tiles) {
      Accum<D> o;
      clear(o);
      weigh_step<Elem, D>(o, probs[i], 0, vr[0]);
      if (last_k >= 16) weigh_step<Elem, D>(o, probs[i], 1, vr[1]);
      store_rows<Elem, D, kMode>(o, one, out, p, seq, 16 * i, head, g, t);
    }
}

// Applies bias and masks to scores of 16 queries and a chunk of 32 keys. `place` is the position of the lane's first
// query, `key` that of the chunk's first key, `left` the last valid key within the chunk.
template <AttentionMode kMode>
__device__ __forceinline__ void finish_scores(float (&s)[4][4], int left, int window, const AttentionProblem& p,
                                              int place, int key, int head, int t) {
  if (left < kChunkKeys - 1) mask_keys(s, left, t);
  if constexpr (kMode == AttentionMode::biased) add_bias(s, p, head, place, key, t);
  if (window > 0) mask_window(s, window, place, key, t);
}
// Probabilities of the keys.
template <class Elem, int D, AttentionMode kMode>
__device__ __forceinline__ Probs weights_of(Running<D>& run, float (&s)[4][4], const AttentionProblem& p,
                                            const DropLane& drop, int key, int t) {
  exponentials(run, s, p.scale * kLog2e);
  if constexpr (keeps_statistics(kMode))
    if (p.drop.threshold != 0) drop_probabilities(s, drop, p.drop.site, key, t);
  Probs probs;
  pack_probabilities<Elem>(probs, s);
  return probs;
}

// 16 queries starting at `first` against the staged chunk of 32 keys starting at row k0; keys past `left` are masked.
template <class Elem, int D, AttentionMode kMode>
__device__ __forceinline__ void attend_chunk(Running<D> (&run)[1], const QTile<D>& qt, const DropLane& drop,
                                             SharedAddress sk, SharedAddress sv, int k0, int left,
                                             const AttentionProblem& p, int first, int head, int lane) {
  const int g = lane >> 2, t = lane & 3;
  float s[1][4][4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    s[0][j][0] = s[0][j][1] = s[0][j][2] = s[0][j][3] = -INFINITY;
    if (j < 2 || left >= 16) score_tile<Elem, D>(s[0][j], qt, staged_k<D>(sk + (k0 + 8 * j) * D * 2, g, t));
  }
  finish_scores<kMode>(s[0], left, p.window, p, first + g, k0, head, t);
  follow_maxima<D, 1>(run, s, p.scale * kLog2e);
  const Probs probs = weights_of<Elem, D, kMode>(run[0], s[0], p, drop, k0, t);
#pragma unroll
  for (int step = 0; step < 2; ++step)
    if (16 * step <= left)
      weigh_matrices<Elem, D>(run[0].o, probs.f[step], staged_matrices<D>(sv + (k0 + 16 * step) * D * 2, lane));
}

// 32 queries starting at `first` against a chunk of a buffer with zeros in the rows past the end; `key` is its first
// key.
template <class Elem, int D, AttentionMode kMode>
__device__ __forceinline__ void attend_long_chunk(Running<D> (&run)[2], const QTile<D> (&qt)[2],
                                                  const DropLane (&drop)[2], SharedAddress sk, SharedAddress sv, int k0,
                                                  int left, const AttentionProblem& p, int first, int key, int head,
                                                  int lane) {
  const int g = lane >> 2, t = lane & 3;
  float s[2][4][4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const KRow<D> kr = staged_k<D>(sk + (k0 + 8 * j) * D * 2, g, t);
#pragma unroll
    for (int i = 0; i < 2; ++i) score_tile<Elem, D>(s[i][j], qt[i], kr);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i)
    finish_scores<kMode>(s[i], left, all_seen(p.window, first + 16 * i, key) ? 0 : p.window, p, first + 16 * i + g, key,
                         head, t);
  follow_maxima<D, 2>(run, s, p.scale * kLog2e);
  const VTile<D> values[2] = {staged_matrices<D>(sv + k0 * D * 2, lane),
                              staged_matrices<D>(sv + (k0 + 16) * D * 2, lane)};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const Probs probs = weights_of<Elem, D, kMode>(run[i], s[i], p, drop[i], key, t);
#pragma unroll
    for (int step = 0; step < 2; ++step) weigh_matrices<Elem, D>(run[i].o, probs.f[step], values[step]);
  }
}

// A thread's share of filling a buffer: the same 16 bytes of every kStep-th row. Steps are multiples of eight rows, the
// period of the shared memory swizzle, so one address serves for all.
template <class Elem, int D>
struct CopyLane {
  static constexpr int kPieces = D / 8, kStep = kThreads / kPieces;
  static_assert(kStep % 8 == 0 && kLongKeys % kStep == 0);
  const Elem *k, *v;
  unsigned ld;
  int row, at_k, at_v;

  __device__ __forceinline__ CopyLane(const Elem* k_head, const Elem* v_head, unsigned ld_rows)
      : ld(ld_rows), row(static_cast<int>(threadIdx.x) / kPieces) {
    const int piece = static_cast<int>(threadIdx.x) % kPieces;
    k = k_head + static_cast<size_t>(row) * ld + piece * 8;
    v = v_head + static_cast<size_t>(row) * ld + piece * 8;
    at_k = staged_offset<D>(row, piece);
    at_v = matrix_offset<D>(row, piece);
  }
  // Keys and values starting at `first`; rows from `end` on are zero, because values with zero weight must still be
  // finite.
  __device__ __forceinline__ void stage(SharedAddress sk, SharedAddress sv, int first, int end) const {
    const Elem *from_k = k + static_cast<size_t>(first) * ld, *from_v = v + static_cast<size_t>(first) * ld;
    const bool whole = first + kLongKeys <= end;
#pragma unroll
    for (int i = 0; i < kLongKeys / kStep; ++i) {
      const SharedAddress to_k = sk + at_k + i * kStep * D * 2, to_v = sv + at_v + i * kStep * D * 2;
      if (whole || first + row + i * kStep < end) {
        copy_async16(to_k, from_k + i * kStep * ld);
        copy_async16(to_v, from_v + i * kStep * ld);
      } else {
        store_shared16(to_k, make_uint4(0, 0, 0, 0));
        store_shared16(to_v, make_uint4(0, 0, 0, 0));
      }
    }
  }
  // The first `end` rows of the head `offset` elements further, or only their values.
  template <bool kKeys>
  __device__ __forceinline__ void stage_head(SharedAddress sk, SharedAddress sv, int offset, int end) const {
    const Elem *from_k = k + offset, *from_v = v + offset;
    SharedAddress to_k = sk + at_k, to_v = sv + at_v;
#pragma unroll 2
    for (int i = row; i < end; i += kStep) {
      if constexpr (kKeys) copy_async16(to_k, from_k);
      copy_async16(to_v, from_v);
      from_k += kStep * ld;
      from_v += kStep * ld;
      to_k += kStep * D * 2;
      to_v += kStep * D * 2;
    }
  }
  // Clears values from row `end` up to the next multiple of 16. Keys need no clearing: their scores are masked.
  __device__ __forceinline__ void clear_rest(SharedAddress sv, int end) const {
    for (int i = row; i < (end + 15) / 16 * 16; i += kStep)
      if (i >= end) store_shared16(sv + at_v + (i - row) * D * 2, make_uint4(0, 0, 0, 0));
  }
};

template <class Elem, int D, AttentionMode kMode>
__device__ __forceinline__ void finish_rows(const Running<D>& run, void* out, const AttentionProblem& p,
                                            const AttentionSequence& seq, int first, int head, int g, int t) {
  const float out_scale = output_scale<kMode>(p), sum[2] = {quad_sum(run.sum[0]), quad_sum(run.sum[1])};
  const float factor[2] = {__fdividef(out_scale, sum[0]), __fdividef(out_scale, sum[1])};
  if constexpr (keeps_statistics(kMode))
    if (p.lse != nullptr)
      store_lse({run.shift[0] + log2f(sum[0]), run.shift[1] + log2f(sum[1])}, p, seq, first, head, g, t);
  store_rows_in_order<Elem, D, kMode>(run.o, factor, out, p, seq, first, head, g, t);
}

// A block computes heads head, head + step, ... of one sequence of up to kMediumKeys tokens. While one tile is
// computed, the queries of the warp's next tile are prefetched into registers, and so are the keys and values of the
// next head if both fit.
template <class Elem, int D, AttentionMode kMode>
__device__ __forceinline__ void medium_sequence(const Elem* q, const Elem* k, const Elem* v, void* out,
                                                const AttentionProblem& p, const AttentionSequence& seq,
                                                SharedAddress room, int head, int step) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane >> 2, t = lane & 3, last_q = seq.q_len - 1;
  const bool paired = seq.kv_len <= kMediumKeys / 2;
  const int values_at = (paired ? kMediumKeys / 2 : kMediumKeys) * D * 2;
  const CopyLane<Elem, D> copy(k, v, p.ldkv);
  const auto stage = [&](int h, SharedAddress to) {
    copy.template stage_head<kMode != AttentionMode::rotary>(to, to + values_at, h * D, seq.kv_len);
    if constexpr (kMode == AttentionMode::rotary)
      stage_turned_rows<Elem, D>(to, k + h * D, p.ldkv, seq.kv_len, p.turns);
  };
  const auto load = [&](QTile<D>& to, int h, int first) {
    if (first <= last_q) load_q<Elem, D>(to, q + h * D, p.ldq, first, last_q, g, t);
  };
  QTile<D> next_q;
  stage(head, room);
  copy_async_commit();
  load(next_q, head, 16 * warp);
  copy.clear_rest(room + values_at, seq.kv_len);
  if (paired) copy.clear_rest(room + 3 * values_at, seq.kv_len);
  int buffer = 0;
#pragma unroll 1
  for (; head < p.heads; head += step) {
    const int next = head + step;
    if (paired && next < p.heads) {
      stage(next, room + (buffer ^ 2) * values_at);
      copy_async_commit();
      copy_async_wait<1>();
    } else {
      copy_async_wait<0>();
    }
    __syncthreads();  // the rows of this head are loaded
    const SharedAddress sk = room + buffer * values_at, sv = sk + values_at;
#pragma unroll 1
    for (int first = 16 * warp; first <= last_q; first += 16 * kWarps) {
      QTile<D> qt = next_q;
      settle(qt, static_cast<uint32_t>(p.S) >> 31);
      if (first + 16 * kWarps <= last_q)
        load(next_q, head, first + 16 * kWarps);
      else if (next < p.heads)
        load(next_q, next, 16 * warp);
      if constexpr (kMode == AttentionMode::rotary) turn_queries<Elem, D>(qt, p, first, last_q, g, t);
      const DropLane drop = drop_lane(p, seq.q_start + first + g, head, t);
      Running<D> run[1];
      start(run[0]);
      const KeyRange seen = seen_keys(p.window, first, 16, seq.kv_len, kChunkKeys);
#pragma unroll 1
      for (int k0 = seen.first; k0 < seen.end; k0 += kChunkKeys)
        attend_chunk<Elem, D, kMode>(run, qt, drop, sk, sv, k0, seq.kv_len - 1 - k0, p, first, head, lane);
      finish_rows<Elem, D, kMode>(run[0], out, p, seq, first, head, g, t);
    }
    __syncthreads();  // all threads have finished reading them
    if (paired) {
      buffer ^= 2;
    } else if (next < p.heads) {
      stage(next, room);
      copy_async_commit();
    }
  }
}

// Blocks [0, n_long * parts) compute every parts-th head of one sequence of more than 32 tokens; in the other blocks,
// each warp computes one head of one short sequence. Neighbours compute neighbouring heads, so whole rows are read
// together.
template <class Elem, int D, AttentionMode kMode>
__global__ void __launch_bounds__(kThreads, 4)
    attention_kernel(const Elem* q, const Elem* k, const Elem* v, void* __restrict__ out, const AttentionProblem p,
                     int parts) {
  __shared__ __align__(128) uint8_t staged[2 * kMediumKeys * D * 2];
  let_next_begin();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane >> 2, t = lane & 3;
  const bool is_long = static_cast<int>(blockIdx.x) < p.n_long * parts;
  const int item =
      is_long ? static_cast<int>(blockIdx.x) : (static_cast<int>(blockIdx.x) - p.n_long * parts) * kWarps + warp;
  const int per_sequence = is_long ? parts : p.heads;
  const int index = (is_long ? 0 : p.n_long) + item / per_sequence, head = item % per_sequence;
  if (index >= p.B) return;
  const AttentionSequence seq = attention_sequence(p, index);  // no chained kernel writes the sequence offsets
  wait_for_previous();
  q += static_cast<size_t>(seq.q_start) * p.ldq;
  k += static_cast<size_t>(seq.kv_start) * p.ldkv;
  v += static_cast<size_t>(seq.kv_start) * p.ldkv;
  // In a graph the number of long sequences is unknown: short ones are computed identically wherever they occur, and a
  // block has one head.
  if (!is_long || seq.kv_len <= kShortTokens) {
    if (is_long && warp != 0) return;
    if (seq.kv_len > 0)
      short_sequence<Elem, D, kMode>(q + head * D, k + head * D, v + head * D, out, p, seq, head, g, t);
    else if (p.first_query_only)
      store_empty<Elem, D, kMode>(out, p, seq.q_start, head, lane);
    return;
  }
  if (seq.kv_len > kMediumKeys) return;  // handled by the long kernel
  medium_sequence<Elem, D, kMode>(q, k, v, out, p, seq, shared_address(staged), head, parts);
}

template <class Elem, int D, AttentionMode kMode>
__global__ void __launch_bounds__(kThreads, 2)
    attention_long_kernel(const Elem* __restrict__ q, const Elem* __restrict__ k, const Elem* __restrict__ v,
                          void* __restrict__ out, const AttentionProblem p) {
  __shared__ __align__(128) uint8_t staged[kLongBuffers][2][kLongKeys * D * 2];  // [buffer][K or V]
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane >> 2, t = lane & 3;
  const int q_tiles = p.first_query_only ? 1 : (p.S + kLongQueries - 1) / kLongQueries;
#pragma unroll 1
  for (int64_t item = blockIdx.x; item < static_cast<int64_t>(p.n_long) * q_tiles * p.heads; item += gridDim.x) {
    const int head = static_cast<int>(item % p.heads), tile = static_cast<int>(item / p.heads % q_tiles),
              index = static_cast<int>(item / p.heads / q_tiles);
    const AttentionSequence seq = attention_sequence(p, index);
    if (seq.kv_len <= kMediumKeys) {
      if (p.order != nullptr) break;  // sorted: no longer ones follow
      continue;
    }
    if (tile * kLongQueries >= seq.q_len) continue;
    const Elem* q_head = q + static_cast<size_t>(seq.q_start) * p.ldq + head * D;
    const Elem* k_head = k + static_cast<size_t>(seq.kv_start) * p.ldkv + head * D;
    const Elem* v_head = v + static_cast<size_t>(seq.kv_start) * p.ldkv + head * D;
    const int first = tile * kLongQueries + 32 * warp;
    const KeyRange seen = seen_keys(p.window, tile * kLongQueries, kLongQueries, seq.kv_len, kLongKeys),
                   warp_seen = seen_keys(p.window, first, 32, seq.kv_len, kChunkKeys);
    const int begin = seen.first / kLongKeys, buffers = (seen.end + kLongKeys - 1) / kLongKeys;
    const bool active = first < seq.q_len;
    const CopyLane<Elem, D> copy(k_head, v_head, p.ldkv);
    // Every step commits a group of copies, empty past the last one, so that the wait count is constant.
    const auto stage = [&](int i, int buffer) {
      if (i < buffers)
        copy.stage(shared_address(staged[buffer][0]), shared_address(staged[buffer][1]), i * kLongKeys, seq.kv_len);
      copy_async_commit();
    };
    QTile<D> qt[2];
    Running<D> run[2];
    const DropLane drop[2] = {drop_lane(p, seq.q_start + first + g, head, t),
                              drop_lane(p, seq.q_start + first + 16 + g, head, t)};
    __syncthreads();  // all threads have finished reading the buffers of the previous item
#pragma unroll
    for (int i = 0; i < kLongBuffers - 1; ++i) stage(begin + i, i);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (active) {
        load_q<Elem, D>(qt[i], q_head, p.ldq, first + 16 * i, seq.q_len - 1, g, t);
        if constexpr (kMode == AttentionMode::rotary)
          turn_queries<Elem, D>(qt[i], p, first + 16 * i, seq.q_len - 1, g, t);
        settle(qt[i], static_cast<uint32_t>(p.S) >> 31);
      }
      start(run[i]);
    }
    int buffer = 0;
#pragma unroll 1
    for (int b = begin; b < buffers; ++b) {
      copy_async_wait<kLongBuffers - 2>();
      __syncthreads();  // buffer b is loaded, and b - 1 is no longer read and is refilled
      stage(b + kLongBuffers - 1, buffer == 0 ? kLongBuffers - 1 : buffer - 1);
      if (active) {
        const SharedAddress sk = shared_address(staged[buffer][0]), sv = shared_address(staged[buffer][1]);
        const int begin_key = max(warp_seen.first, b * kLongKeys), end_key = min(warp_seen.end, (b + 1) * kLongKeys);
#pragma unroll 1
        for (int key = begin_key; key < end_key; key += kChunkKeys)
          attend_long_chunk<Elem, D, kMode>(run, qt, drop, sk, sv, key - b * kLongKeys, seq.kv_len - 1 - key, p, first,
                                            key, head, lane);
      }
      buffer = buffer == kLongBuffers - 1 ? 0 : buffer + 1;
    }
    if (active) {
#pragma unroll
      for (int i = 0; i < 2; ++i) finish_rows<Elem, D, kMode>(run[i], out, p, seq, first + 16 * i, head, g, t);
    }
  }
}

// ---- Plain kernel: any head size up to 32 * kSlices, fp32 arithmetic. A warp computes four queries; a lane is one of
// 32 keys for the scores, and kSlices dims of the output ----
constexpr int kPlainQueries = 4 * kWarps, kPlainKeys = 32;

template <class Elem, int kSlices>
__global__ void __launch_bounds__(kThreads, 4)
    attention_plain_kernel(const Elem* __restrict__ q, const Elem* __restrict__ k, const Elem* __restrict__ v,
                           void* __restrict__ out, int D, const AttentionProblem p) {
  __shared__ float keys[kPlainKeys][32 * kSlices + 1], values[kPlainKeys][32 * kSlices],
      queries[kPlainQueries][32 * kSlices];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int index = static_cast<int>(blockIdx.x) / p.heads, head = static_cast<int>(blockIdx.x) % p.heads;
  const AttentionSequence seq = attention_sequence(p, index);
  const int q_len = p.first_query_only ? 1 : seq.q_len;  // the first query of an empty sequence gives zeros
  const float out_scale = p.out_scale != nullptr ? *p.out_scale : 1.0f;
  q += static_cast<size_t>(seq.q_start) * p.ldq + head * D;
  k += static_cast<size_t>(seq.kv_start) * p.ldkv + head * D;
  v += static_cast<size_t>(seq.kv_start) * p.ldkv + head * D;
  for (int q0 = static_cast<int>(blockIdx.y) * kPlainQueries; q0 < q_len;
       q0 += static_cast<int>(gridDim.y) * kPlainQueries) {
    float o[4][kSlices], top[4], sum[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      top[r] = -INFINITY;
      sum[r] = 0.0f;
#pragma unroll
      for (int i = 0; i < kSlices; ++i) o[r][i] = 0.0f;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < kPlainQueries * D; i += kThreads)
      queries[i / D][i % D] = to_f32(q[static_cast<size_t>(min(q0 + i / D, q_len - 1)) * p.ldq + i % D]);
    const KeyRange seen = seen_keys(p.window, q0, kPlainQueries, seq.kv_len, kPlainKeys);
    for (int k0 = seen.first; k0 < seen.end; k0 += kPlainKeys) {
      const int n = min(kPlainKeys, seq.kv_len - k0);
      __syncthreads();
      for (int i = threadIdx.x; i < n * D; i += kThreads) {
        const size_t at = static_cast<size_t>(k0 + i / D) * p.ldkv + i % D;
        keys[i / D][i % D] = to_f32(k[at]);
        values[i / D][i % D] = to_f32(v[at]);
      }
      __syncthreads();
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        float s = 0.0f;
        for (int d = 0; d < D; ++d) s = fmaf(queries[4 * warp + r][d], keys[min(lane, n - 1)][d], s);
        if (p.bias != nullptr) s += bias_of(p, head, k0 + lane - (q0 + 4 * warp + r));
        s = lane < n ? s * p.scale : -INFINITY;
        if (p.window > 0 && abs(q0 + 4 * warp + r - (k0 + lane)) > p.window) s = -1e30f;  // finite, also after new_top
        const float new_top = fmaxf(top[r], warp_max(s)), shrink = expf(top[r] - new_top);
        float weight = expf(s - new_top);
        sum[r] = sum[r] * shrink + warp_sum(weight);
        top[r] = new_top;
        if (p.drop.threshold != 0) {
          const int key = k0 + lane;
          const uint64_t bits =
              dropout_bits(p.drop.seed, p.drop.site, drop_row(p, seq.q_start + q0 + 4 * warp + r, head),
                           static_cast<uint32_t>(key) / 4);
          weight = dropout_keeps(bits, key, p.drop.threshold) ? weight * p.drop.scale : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < kSlices; ++i) o[r][i] *= shrink;
        for (int j = 0; j < n; ++j) {
          const float w = __shfl_sync(~0u, weight, j);
#pragma unroll
          for (int i = 0; i < kSlices; ++i) o[r][i] = fmaf(w, values[j][min(lane + 32 * i, D - 1)], o[r][i]);
        }
      }
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int row = q0 + 4 * warp + r;
      if (row >= q_len) continue;
      const float factor = seq.kv_len == 0 ? 0.0f : out_scale / sum[r];
      if (p.lse != nullptr && lane == 0)
        p.lse[static_cast<size_t>(seq.q_start + row) * p.heads + head] = top[r] + logf(sum[r]);
#pragma unroll
      for (int i = 0; i < kSlices; ++i) {
        const int d = lane + 32 * i;
        if (d >= D) continue;
        const size_t at = static_cast<size_t>(seq.q_start + row) * p.ldo + head * D + d;
        if (p.out_scale != nullptr)
          static_cast<uint8_t*>(out)[at] = __nv_cvt_float_to_fp8(o[r][i] * factor, __NV_SATFINITE, __NV_E4M3);
        else
          static_cast<Elem*>(out)[at] = from_f32<Elem>(o[r][i] * factor);
      }
    }
  }
}

// ---- Launches ----
template <class Elem>
void turn_rows(device::CudaStream& s, const tensor::TensorView& x, const AttentionProblem& p, int D, int above) {
  const auto most = static_cast<int64_t>(p.B) * device::blocks_for(p.S, kTurnRows);
  const dim3 grid(static_cast<unsigned>(std::min<int64_t>(most, static_cast<int64_t>(s.info().sm_count) * 8)));
  auto* rows = static_cast<Elem*>(x.data);
  const auto ld = static_cast<unsigned>(x.ld());
  if (D % 16 == 0 && eight_wide(x))
    device::launch<turn_rows_kernel<Elem, 8>>(s, grid, dim3(kTurnThreads), rows, ld, D, above, p);
  else
    device::launch<turn_rows_kernel<Elem, 1>>(s, grid, dim3(kTurnThreads), rows, ld, D, above, p);
}

template <class Elem, int D, AttentionMode kMode>
void launch_tensor(device::CudaStream& s, const AttentionArgs& a, const AttentionProblem& p) {
  const auto *q = static_cast<const Elem*>(a.q.data), *k = static_cast<const Elem*>(a.k.data),
             *v = static_cast<const Elem*>(a.v.data);
  const int n_short = p.B - p.n_long;
  // Two heads per block if that still leaves at least four blocks for each of the four slots of a multiprocessor.
  // Measured: tweets 140.6 us with one, 131.3 with two, 130.2 with three, 155.8 with twelve; 48 tokens each 151.5,
  // 133.5, 142.0 with six. With rotary embeddings there is no time left to hide the next head's loads: 64 tokens each
  // 181 with one, 196 with six.
  const bool walks = kMode != AttentionMode::rotary && p.order != nullptr &&
                     int64_t{p.n_long} * p.heads >= int64_t{s.info().sm_count} * 32;
  const int parts = static_cast<int>(device::blocks_for(p.heads, walks ? 2 : 1));
  const unsigned blocks =
      static_cast<unsigned>(p.n_long * parts) + device::blocks_for(static_cast<int64_t>(n_short) * p.heads, kWarps);
  if (p.S > kMediumKeys && p.n_long > 0) {  // first, because it takes longest
    if constexpr (kMode == AttentionMode::rotary) turn_rows<Elem>(s, a.k, p, D, kMediumKeys);
    const int64_t most = std::min<int64_t>(p.n_long, a.batch.T / (kMediumKeys + 1)) * p.heads *
                         (p.first_query_only ? 1 : device::blocks_for(p.S, kLongQueries));
    const auto resident = static_cast<int64_t>(s.info().sm_count) * 2;
    device::launch<attention_long_kernel<Elem, D, kMode>>(
        s, dim3(static_cast<unsigned>(std::min(p.order == nullptr ? resident : most, resident))), dim3(kThreads), q, k,
        v, a.out.data, p);
  }
  device::launch_chained<attention_kernel<Elem, D, kMode>>(s, dim3(blocks), dim3(kThreads), q, k, v, a.out.data, p,
                                                           parts);
}

template <class Elem, int D>
void launch_mode(device::CudaStream& s, const AttentionArgs& a, const AttentionProblem& p) {
  const bool trains = p.lse != nullptr || p.drop.threshold != 0;
  BRIM_CHECK(!trains || p.out_scale == nullptr, "attention: fp8 output is not supported with lse or dropout");
  if (p.turns != nullptr) {
    launch_tensor<Elem, D, AttentionMode::rotary>(s, a, p);
  } else if (p.bias != nullptr) {
    launch_tensor<Elem, D, AttentionMode::biased>(s, a, p);
  } else if (trains) {
    launch_tensor<Elem, D, AttentionMode::train>(s, a, p);
  } else if (p.out_scale != nullptr) {
    launch_tensor<Elem, D, AttentionMode::fp8_out>(s, a, p);
  } else {
    launch_tensor<Elem, D, AttentionMode::infer>(s, a, p);
  }
}

template <class Elem>
void launch_plain(device::CudaStream& s, const AttentionArgs& a, const AttentionProblem& p, int D) {
  BRIM_CHECK(D <= 128, "attention: head size is {}, the CUDA kernels support up to 128", D);
  if (p.turns != nullptr) {
    turn_rows<Elem>(s, a.k, p, D, 0);
    if (!p.first_query_only) turn_rows<Elem>(s, a.q, p, D, 0);  // the position of a first token is 0
  }
  const dim3 grid(static_cast<unsigned>(p.B * p.heads),
                  std::clamp(device::blocks_for(p.first_query_only ? 1 : p.S, kPlainQueries), 1u, 64u));
  const auto *q = static_cast<const Elem*>(a.q.data), *k = static_cast<const Elem*>(a.k.data),
             *v = static_cast<const Elem*>(a.v.data);
  if (D <= 32)
    device::launch<attention_plain_kernel<Elem, 1>>(s, grid, dim3(kThreads), q, k, v, a.out.data, D, p);
  else if (D <= 64)
    device::launch<attention_plain_kernel<Elem, 2>>(s, grid, dim3(kThreads), q, k, v, a.out.data, D, p);
  else
    device::launch<attention_plain_kernel<Elem, 4>>(s, grid, dim3(kThreads), q, k, v, a.out.data, D, p);
}

const float* make_turns(device::CudaStream& s, const AttentionArgs& a, int S, int D) {
  if (a.rope_theta == 0) return nullptr;
  const int64_t wanted = rope_turns_bytes(S, D), given = a.scratch ? a.scratch.bytes() : 0;
  BRIM_CHECK(given >= wanted, "attention: scratch has {} bytes, needs {}", given, wanted);
  auto* turns = static_cast<float*>(a.scratch.data);
  device::launch<turns_kernel>(s, dim3(device::blocks_for(static_cast<int64_t>(S) * (D / 2), kTurnThreads)),
                               dim3(kTurnThreads), turns, rope_frequencies(a.rope_theta, D), S, D / 2);
  return turns;
}

}  // namespace

void attention_cuda(device::Stream& stream, const AttentionArgs& a) {
  cuda_op(stream, "attention", [&](device::CudaStream& s) {
    if (a.distance_queries || a.distance_keys) return attention_distance_cuda(s, a);
    const int D = static_cast<int>(a.q.cols() / a.heads);
    BRIM_CHECK(a.k.ld() == a.v.ld(), "attention: row stride is {} for k and {} for v; they must be equal", a.k.ld(),
               a.v.ld());
    AttentionProblem p = attention_problem(a);
    p.ldq = static_cast<unsigned>(a.q.ld());
    p.ldkv = static_cast<unsigned>(a.k.ld());
    p.ldo = static_cast<unsigned>(a.out.ld());
    p.out_scale = a.out_scale.as<float>();
    p.turns = make_turns(s, a, p.S, D);
    const bool tensor_cores =
        (a.q.dtype == tensor::DType::f16 || (a.q.dtype == tensor::DType::bf16 && s.info().bf16)) &&
        (D == 32 || D == 64) && rows_aligned16(a.q) && rows_aligned16(a.k) && rows_aligned16(a.v) &&
        rows_aligned16(a.out);
    dispatch_elem(a.q.dtype, [&](auto tag) {
      using Elem = typename decltype(tag)::type;
      if constexpr (!std::is_same_v<Elem, float>) {
        if (tensor_cores && D == 64) return launch_mode<Elem, 64>(s, a, p);
        if (tensor_cores) return launch_mode<Elem, 32>(s, a, p);
      }
      launch_plain<Elem>(s, a, p, D);
    });
  });
}

}  // namespace brim::ops
