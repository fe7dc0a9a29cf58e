// SPDX-License-Identifier: Apache-2.0
// Rotary embeddings inside attention: queries and keys are rotated between load and product, using a table of cosines
// and sines per position. A batch of tweets reads 32 KiB of it from the L1 cache, whereas a separate op would read and
// write every query and key once more.
#pragma once
#include "ops/cuda/attention_tile.cuh"
#include "ops/cuda/rope.cuh"
#include "ops/rope.h"

namespace brim::ops {

// Rotation of eight neighbouring pairs of dims.
struct Turn {
  float cos[8], sin[8];
};
template <int D>
__device__ __forceinline__ Turn load_turn(const float* turns, int place, int first) {
  Turn turn;
  const float* row = turns + static_cast<size_t>(place) * D + first;
  load8(row, turn.cos);
  load8(row + D / 2, turn.sin);
  return turn;
}
// First of the pairs held by lane 4g + t of a row (see attention_tile.cuh).
template <int D>
__device__ __forceinline__ int first_pair(int t) {
  return D == 64 ? 8 * t : 8 * (t & 1);
}

template <class Elem>
__device__ __forceinline__ void turn_words(uint32_t (&low)[4], uint32_t (&high)[4], const Turn& turn) {
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    const float2 a = unpack2<Elem>(low[w]), b = unpack2<Elem>(high[w]);
    const float2 first = turned({a.x, b.x}, turn.cos[2 * w], turn.sin[2 * w]),
                 second = turned({a.y, b.y}, turn.cos[2 * w + 1], turn.sin[2 * w + 1]);
    low[w] = pack2<Elem>(first.x, second.x);
    high[w] = pack2<Elem>(first.y, second.y);
  }
}
// Rotates a lane's words of a row. With 64 dims it holds both elements of each pair; with 32 the other is in the lane
// two further.
template <class Elem, int D>
__device__ __forceinline__ void turn_lane(uint32_t (&w)[D / 8], const Turn& turn, int t) {
  uint32_t low[4], high[4];
  if constexpr (D == 64) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      low[i] = w[i];
      high[i] = w[4 + i];
    }
    turn_words<Elem>(low, high, turn);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      w[i] = low[i];
      w[4 + i] = high[i];
    }
  } else {
    const bool upper = t >= 2;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t other = __shfl_xor_sync(~0u, w[i], 2);
      low[i] = upper ? other : w[i];
      high[i] = upper ? w[i] : other;
    }
    turn_words<Elem>(low, high, turn);
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = upper ? high[i] : low[i];
  }
}
// Row g + 8h of a tile of queries.
template <class Elem, int D>
__device__ __forceinline__ void turn_query(QTile<D>& q, int h, const Turn& turn, int t) {
  uint32_t w[D / 8];
#pragma unroll
  for (int i = 0; i < D / 8; ++i) w[i] = q.f[i / 2][2 * (i & 1) + h];
  turn_lane<Elem, D>(w, turn, t);
#pragma unroll
  for (int i = 0; i < D / 8; ++i) q.f[i / 2][2 * (i & 1) + h] = w[i];
}
// Rows first .. first + 15. A single query per sequence is at position 0 and needs no rotation.
template <class Elem, int D>
__device__ __forceinline__ void turn_queries(QTile<D>& q, const AttentionProblem& p, int first, int last, int g,
                                             int t) {
  if (p.first_query_only) return;
#pragma unroll
  for (int h = 0; h < 2; ++h)
    turn_query<Elem, D>(q, h, load_turn<D>(p.turns, min(first + g + 8 * h, last), first_pair<D>(t)), t);
}
template <class Elem, int D>
__device__ __forceinline__ void turn_key(KRow<D>& k, const Turn& turn, int t) {
  uint32_t w[D / 8];
#pragma unroll
  for (int i = 0; i < D / 32; ++i) {
    w[4 * i] = k.v[i].x;
    w[4 * i + 1] = k.v[i].y;
    w[4 * i + 2] = k.v[i].z;
    w[4 * i + 3] = k.v[i].w;
  }
  turn_lane<Elem, D>(w, turn, t);
#pragma unroll
  for (int i = 0; i < D / 32; ++i) k.v[i] = make_uint4(w[4 * i], w[4 * i + 1], w[4 * i + 2], w[4 * i + 3]);
}

// Loads the keys of a whole sequence to shared memory, rotated.
template <class Elem, int D>
__device__ __forceinline__ void stage_turned_rows(SharedAddress base, const Elem* src, unsigned ld, int rows,
                                                  const float* turns) {
  constexpr int kPairs = D / 16;  // pairs of 16-byte pieces
#pragma unroll 2
  for (int i = threadIdx.x; i < rows * kPairs; i += blockDim.x) {
    const int row = i / kPairs, piece = i % kPairs;
    const Elem* from = src + static_cast<size_t>(row) * ld + piece * 8;
    const uint4 a = load16(from, 0), b = load16(from, D / 2);
    uint32_t low[4] = {a.x, a.y, a.z, a.w}, high[4] = {b.x, b.y, b.z, b.w};
    turn_words<Elem>(low, high, load_turn<D>(turns, row, 8 * piece));
    store_shared16(staged_at<D>(base, row, piece), make_uint4(low[0], low[1], low[2], low[3]));
    store_shared16(staged_at<D>(base, row, piece + kPairs), make_uint4(high[0], high[1], high[2], high[3]));
  }
}

constexpr int kTurnThreads = 256, kTurnRows = 32;

// turns[position][D]: cosines of the D/2 angles, then their sines.
static __global__ void __launch_bounds__(kTurnThreads)
    turns_kernel(float* turns, const RopeFrequencies frequencies, int S, int half) {
  const int i = static_cast<int>(blockIdx.x) * kTurnThreads + threadIdx.x;
  if (i >= S * half) return;
  const int place = i / half, j = i % half;
  const float2 turn = turn_of(place, frequencies.of[j]);
  turns[static_cast<size_t>(place) * 2 * half + j] = turn.x;
  turns[static_cast<size_t>(place) * 2 * half + half + j] = turn.y;
}

// Rotates rows of sequences longer than `above` in place: keys read by many blocks of queries, and inputs of the plain
// kernel.
template <class Elem, int kWidth>
__global__ void __launch_bounds__(kTurnThreads)
    turn_rows_kernel(Elem* x, unsigned ld, int D, int above, const AttentionProblem p) {
  const int tiles = (p.S + kTurnRows - 1) / kTurnRows, half = D / 2, per_head = half / kWidth,
            pieces = p.heads * per_head;
  for (int64_t item = blockIdx.x; item < static_cast<int64_t>(p.B) * tiles; item += gridDim.x) {
    const AttentionSequence seq = attention_sequence(p, static_cast<int>(item / tiles));
    const int first = static_cast<int>(item % tiles) * kTurnRows, rows = min(kTurnRows, seq.kv_len - first);
    if (seq.kv_len <= above && p.order != nullptr) break;  // sorted: no longer ones follow
    if (seq.kv_len <= above) continue;
    for (int i = threadIdx.x; i < rows * pieces; i += kTurnThreads) {
      const int row = first + i / pieces, piece = i % pieces, j = piece % per_head * kWidth;
      Elem* at = x + static_cast<size_t>(seq.kv_start + row) * ld + piece / per_head * D + j;
      const float* turn = p.turns + static_cast<size_t>(row) * D + j;
      float a[kWidth], b[kWidth], cos[kWidth], sin[kWidth];
      load_piece<kWidth>(at, a);
      load_piece<kWidth>(at + half, b);
      load_piece<kWidth>(turn, cos);
      load_piece<kWidth>(turn + half, sin);
#pragma unroll
      for (int e = 0; e < kWidth; ++e) {
        const float2 both = turned({a[e], b[e]}, cos[e], sin[e]);
        a[e] = both.x;
        b[e] = both.y;
      }
      store_piece<kWidth>(at, a);
      store_piece<kWidth>(at + half, b);
    }
  }
}

}  // namespace brim::ops
