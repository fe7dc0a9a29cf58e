// SPDX-License-Identifier: Apache-2.0
// Shared parts of the attention kernels with tables of distances, forward and backward. Row reach + (key position -
// query position) of a table belongs to a query and a key; nothing is stored per pair of tokens.
#pragma once
#include "ops/attention.h"
#include "ops/cuda/attention_tile.cuh"
#include "ops/cuda/distance_parts.h"

namespace brim::ops {

template <class Elem>
struct DistanceRows {
  const Elem* data;  // null: no such table
  unsigned ld;
};
template <class Elem>
struct DistanceProblem {
  AttentionProblem p;  // reach: row of distance 0
  DistanceRows<Elem> queries, keys;
};

void attention_distance_cuda(device::CudaStream& s, const AttentionArgs& a);
void attention_distance_grad_cuda(device::CudaStream& s, const AttentionGradArgs& a);

template <class Elem>
DistanceRows<Elem> distance_table(const tensor::TensorView& t) {
  return {static_cast<const Elem*>(t.data), static_cast<unsigned>(t ? t.ld() : 0)};
}

// Common to both directions; the caller sets the strides of q, k and out.
template <class Args>
AttentionProblem distance_problem(const Args& a) {
  const int64_t tables = static_cast<int64_t>(static_cast<bool>(a.distance_queries)) +
                         static_cast<int64_t>(static_cast<bool>(a.distance_keys));
  AttentionProblem p = attention_problem(a, a.batch.S, attention_scale(a.q.cols() / a.heads, tables));
  p.reach = static_cast<int>((a.distance_keys ? a.distance_keys : a.distance_queries).rows() / 2);
  return p;
}

// Dot product of D elements, one lane.
template <class Elem>
__device__ __forceinline__ float row_dot(const Elem* a, const Elem* b, int D) {
  float sum = 0.0f;
  for (int d = 0; d < D; ++d) sum = fmaf(to_f32(a[d]), to_f32(b[d]), sum);
  return sum;
}
// Score of a query and a key before scaling; `head` is the head's first column.
template <class Elem>
__device__ __forceinline__ float plain_score(const DistanceProblem<Elem>& x, const Elem* q, const Elem* k, int query,
                                             int key, int head, int D) {
  const int row = x.p.reach + key - query;
  float sum = row_dot(q, k, D);
  if (x.keys.data != nullptr) sum += row_dot(q, x.keys.data + static_cast<size_t>(row) * x.keys.ld + head, D);
  if (x.queries.data != nullptr) sum += row_dot(k, x.queries.data + static_cast<size_t>(row) * x.queries.ld + head, D);
  return sum;
}
// Dropout factor of one probability; `row` is the query's row.
__device__ __forceinline__ float plain_factor(const AttentionProblem& p, int row, int head, int key) {
  if (p.drop.threshold == 0) return 1.0f;
  const uint64_t bits = dropout_bits(p.drop.seed, p.drop.site, drop_row(p, row, head), static_cast<uint32_t>(key) / 4);
  return dropout_keeps(bits, key, p.drop.threshold) ? p.drop.scale : 0.0f;
}

// ---- Tensor cores ----

// Products of 16 rows with two blocks of 16 table rows, as a ring of 32 columns: table row reach + d is in column d
// & 31. One warp writes and reads it, with __syncwarp between.
constexpr int kRingLd = 36;
struct DistanceRing {
  float value[16][kRingLd];
};

template <int D>
struct TableBlock {
  KRow<D> row[2];  // this lane's part of rows 8 n + g
};
// The tables from the side of 16 own rows, which go through the other rows of their sequence: own rows are queries, or
// keys with kKeys. Distances are positions of other rows minus own ones, in blocks of 16 starting at 16 e.
template <class Elem, bool kKeys>
struct Side {
  const DistanceProblem<Elem>& x;
  __device__ __forceinline__ const DistanceRows<Elem>& own() const { return kKeys ? x.queries : x.keys; }
  __device__ __forceinline__ const DistanceRows<Elem>& other() const { return kKeys ? x.keys : x.queries; }
  // Rows outside the tables belong to no pair of tokens.
  __device__ __forceinline__ int row(int distance) const {
    return min(max(x.p.reach + (kKeys ? -distance : distance), 0), 2 * x.p.reach);
  }
};
template <class Elem, int D, bool kKeys>
__device__ __forceinline__ TableBlock<D> load_block(const Side<Elem, kKeys>& side, const DistanceRows<Elem>& table,
                                                    int head, int e, int g, int t) {
  TableBlock<D> block;
#pragma unroll
  for (int n = 0; n < 2; ++n)
    block.row[n] = load_k<Elem, D>(table.data + head * D, table.ld, side.row(16 * e + 8 * n + g), t);
  return block;
}
template <class Elem, int D>
__device__ __forceinline__ void multiply_block(DistanceRing& ring, const QTile<D>& rows, const TableBlock<D>& block,
                                               int e, int g, int t) {
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    float c[4];
    score_tile<Elem, D>(c, rows, block.row[n]);
    float* to = &ring.value[g][16 * (e & 1) + 8 * n + 2 * t];
    to[0] = c[0];
    to[1] = c[1];
    to[8 * kRingLd] = c[2];
    to[8 * kRingLd + 1] = c[3];
  }
}
// The rows of two groups of eight as a tile of 16.
template <int D>
__device__ __forceinline__ QTile<D> tile_of(const KRow<D>& low, const KRow<D>& high) {
  QTile<D> tile;
#pragma unroll
  for (int i = 0; i < D / 32; ++i) {
    tile.f[2 * i][0] = low.v[i].x;
    tile.f[2 * i][1] = high.v[i].x;
    tile.f[2 * i][2] = low.v[i].y;
    tile.f[2 * i][3] = high.v[i].y;
    tile.f[2 * i + 1][0] = low.v[i].z;
    tile.f[2 * i + 1][1] = high.v[i].z;
    tile.f[2 * i + 1][2] = low.v[i].w;
    tile.f[2 * i + 1][3] = high.v[i].w;
  }
  return tile;
}

// Division of tiles of 16 rows among warps: blocks of long sequences first, with kWarps tiles at a time, then blocks
// with several short sequences. Heads come one after the other, so that blocks running together read the same table.
constexpr int kShortTiles = kShortTokens / 16;
struct TileWork {
  int head, index, tile, step;  // index may be past the last sequence
};
template <int kWarps>
__device__ __forceinline__ TileWork tile_work(const AttentionProblem& p, int long_parts, int block, int warp) {
  constexpr int kTogether = kWarps / kShortTiles;
  const int long_blocks = p.n_long * long_parts, per_head = long_blocks + (p.B - p.n_long + kTogether - 1) / kTogether;
  const int head = block / per_head, at = block % per_head;
  if (at < long_blocks) return {head, at / long_parts, at % long_parts * kWarps + warp, long_parts * kWarps};
  return {head, p.n_long + (at - long_blocks) * kTogether + warp / kShortTiles, warp % kShortTiles, kShortTiles};
}
// Blocks per long sequence of a batch with up to `rows` rows per sequence.
template <int kWarps>
int long_parts(int rows) {
  return std::max(1, (rows + 16 * kWarps - 1) / (16 * kWarps));
}
template <int kWarps>
dim3 tile_blocks(const AttentionProblem& p, int parts) {
  constexpr int kTogether = kWarps / kShortTiles;
  const int64_t per_head = int64_t{p.n_long} * parts + (p.B - p.n_long + kTogether - 1) / kTogether;
  return dim3(static_cast<unsigned>(per_head * p.heads));
}

// The products of a warp's own rows, and of the other rows of the current tile.
struct DistanceRings {
  DistanceRing own, other;
};
// Call before the tile with block e.
template <class Elem, int D, bool kKeys>
__device__ __forceinline__ void begin_walk(TableBlock<D>& before, DistanceRings& rings, const QTile<D>& own,
                                           const Side<Elem, kKeys>& side, int head, int e, int g, int t) {
  if (side.own().data != nullptr)
    multiply_block<Elem, D>(rings.own, own, load_block<Elem, D>(side, side.own(), head, e - 1, g, t), e - 1, g, t);
  if (side.other().data != nullptr) before = load_block<Elem, D>(side, side.other(), head, e - 1, g, t);
}
// Scores (before scaling) of 16 own rows and 16 other rows, whose tile is e tiles further; tiles come in order.
// `before`: block e - 1 of the table of the other rows, becomes block e.
template <class Elem, int D, bool kKeys>
__device__ __forceinline__ void score_distances(float (&s0)[4], float (&s1)[4], TableBlock<D>& before,
                                                DistanceRings& rings, const QTile<D>& own, const KRow<D>& low,
                                                const KRow<D>& high, const Side<Elem, kKeys>& side, int head, int e,
                                                int g, int t) {
  score_tile<Elem, D>(s0, own, low);
  score_tile<Elem, D>(s1, own, high);
  if (side.own().data != nullptr)
    multiply_block<Elem, D>(rings.own, own, load_block<Elem, D>(side, side.own(), head, e, g, t), e, g, t);
  if (side.other().data != nullptr) {
    const QTile<D> other = tile_of<D>(low, high);
    multiply_block<Elem, D>(rings.other, other, before, e - 1, g, t);
    before = load_block<Elem, D>(side, side.other(), head, e, g, t);
    multiply_block<Elem, D>(rings.other, other, before, e, g, t);
  }
  __syncwarp();
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    float(&s)[4] = n == 0 ? s0 : s1;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = g + 8 * (i >> 1), far = 8 * n + 2 * t + (i & 1), column = (16 * e + far - row) & 31;
      if (side.own().data != nullptr) s[i] += rings.own.value[row][column];
      if (side.other().data != nullptr) s[i] += rings.other.value[far][column];
    }
  }
  __syncwarp();  // the next tile overwrites the products
}

}  // namespace brim::ops
