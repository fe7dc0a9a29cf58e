// SPDX-License-Identifier: Apache-2.0
// Building blocks of packed attention on tensor cores: one warp, 16 queries, 32 keys at a time, all in registers.
//
// Two index permutations make every global access wide without ldmatrix. With lane = 4g + t:
//  - Q Kᵀ contracts over the head's D dims, so any order works if Q and K share it. A lane loads 16 bytes at dims
//    8t (and 32 + 8t) of its row and uses the words directly as fragments of consecutive k-steps.
//  - P V: a lane loads rows 2t, 2t+1, 2t+8, 2t+9 of V at dims (D/8)g .. and pairs keys with byte permutes; column n of
//    n-tile j is then dim (D/8)n + j, so a lane ends up with the D/4 neighbouring dims starting at (D/4)t.
// Rows past the end are clamped to the last valid row and masked. Softmax is exact, in fp32, base 2. Long sequences
// read V by ldmatrix instead, with columns in dim order, and rows past the end of a buffer as zeros.
#pragma once
#include <algorithm>
#include <cmath>

#include "ops/cuda/elem.cuh"

namespace brim::ops {

constexpr int kChunkKeys = 32;

inline bool rows_aligned16(const tensor::TensorView& v) {
  return reinterpret_cast<uintptr_t>(v.data) % 16 == 0 && v.ld() * dtype_bytes(v.dtype) % 16 == 0;
}

// biased: adds a bias by distance and checks all other options at run time. rotary: rotates queries and keys by
// position and checks for fp8 at run time; scoring only. The other modes have no run-time checks, which would spill
// registers in the kernels that score most texts.
enum class AttentionMode { infer, fp8_out, train, biased, rotary };
constexpr bool keeps_statistics(AttentionMode mode) {
  return mode == AttentionMode::train || mode == AttentionMode::biased;
}

// Arguments of every attention kernel.
struct AttentionProblem {
  const int32_t *starts, *order;  // order may be null: input order
  int B, n_long, S, heads;
  bool first_query_only;
  int window;  // maximum distance between query and key; 0: unlimited
  unsigned ldq, ldkv, ldo;
  float scale;             // 1 / sqrt(D)
  const float* out_scale;  // fp8 output
  float* lse;              // may be null
  DropoutMask drop;        // threshold 0: off
  const float* bias;       // [heads][2 reach + 1] by distance, added to the scaled scores; or null
  int reach;
  float unscale;       // 1 / scale
  const float* turns;  // [S][D] by position: D/2 cosines, D/2 sines; or null
};
// Members that all kernels use, for AttentionArgs and AttentionGradArgs; others are 0 or null. `S`: longest sequence.
template <class Args>
AttentionProblem attention_problem(const Args& a, int64_t S, float scale) {
  AttentionProblem p{};
  p.starts = a.batch.starts.template as<int32_t>();
  p.order = a.batch.order.template as<int32_t>();
  p.B = static_cast<int>(a.batch.B);
  p.S = static_cast<int>(S);
  p.n_long = static_cast<int>(p.order != nullptr ? a.batch.n_long : p.S > kShortTokens ? a.batch.B : 0);
  p.heads = static_cast<int>(a.heads);
  p.first_query_only = a.first_query_only;
  p.scale = scale;
  p.lse = a.lse.template as<float>();
  p.drop = dropout_mask(a.dropout);
  return p;
}
// Also those of kernels without tables of distances.
template <class Args>
AttentionProblem attention_problem(const Args& a) {
  const auto head_size = static_cast<float>(a.q.cols() / a.heads);
  AttentionProblem p = attention_problem(a, a.batch.S > 0 ? a.batch.S : a.batch.T, 1.0f / std::sqrt(head_size));
  p.window = static_cast<int>(std::min<int64_t>(a.window, 1 << 30));
  p.bias = a.bias.template as<float>();
  p.reach = static_cast<int>(a.bias.cols() / 2);
  p.unscale = std::sqrt(head_size);
  return p;
}
struct AttentionSequence {
  int q_start, q_len, kv_start, kv_len;
};
__device__ __forceinline__ AttentionSequence attention_sequence(const AttentionProblem& p, int i) {
  const int b = p.order == nullptr ? i : p.order[i], first = p.starts[b], kv_start = first - p.starts[0],
            kv_len = p.starts[b + 1] - first;
  return {p.first_query_only ? b : kv_start, p.first_query_only ? min(kv_len, 1) : kv_len, kv_start, kv_len};
}

__device__ __forceinline__ float quad_max(float v) {
  v = fmaxf(v, __shfl_xor_sync(~0u, v, 1));
  return fmaxf(v, __shfl_xor_sync(~0u, v, 2));
}
__device__ __forceinline__ float quad_sum(float v) {
  v += __shfl_xor_sync(~0u, v, 1);
  return v + __shfl_xor_sync(~0u, v, 2);
}

template <int D>
struct QTile {
  uint32_t f[D / 16][4];
};
template <int D>
struct KRow {
  uint4 v[D / 32];
};  // this lane's part of one key
template <int D>
struct VRow {
  uint32_t w[D / 16];
};  // this lane's D/8 dims of one key
struct Probs {
  uint32_t f[2][4];
};  // 16 queries x 32 keys
template <int D>
struct Accum {
  float c[D / 8][4];
};  // 16 queries x D

template <int D>
__device__ __forceinline__ void clear(Accum<D>& o) {
#pragma unroll
  for (int j = 0; j < D / 8; ++j) o.c[j][0] = o.c[j][1] = o.c[j][2] = o.c[j][3] = 0.0f;
}
template <class Elem>
__device__ __forceinline__ uint4 load16(const Elem* base, unsigned offset) {
  return *reinterpret_cast<const uint4*>(base + offset);
}

template <class Elem, int D>
__device__ __forceinline__ void load_q(QTile<D>& q, const Elem* src, unsigned ld, int first, int last, int g, int t) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const unsigned offset = static_cast<unsigned>(min(first + g + 8 * h, last)) * ld + 8 * t;
#pragma unroll
    for (int i = 0; i < D / 32; ++i) {
      const uint4 x = load16(src, offset + 32 * i);
      q.f[2 * i][h] = x.x;
      q.f[2 * i][2 + h] = x.y;
      q.f[2 * i + 1][h] = x.z;
      q.f[2 * i + 1][2 + h] = x.w;
    }
  }
}
// Loops that read the tile repeatedly need each fragment in neighbouring registers. After loading, the words of a row
// are neighbours instead, and the compiler moved all of them for every product. `zero` is zero at run time, unknown to
// the compiler.
template <int D>
__device__ __forceinline__ void settle(QTile<D>& q, uint32_t zero) {
#pragma unroll
  for (int i = 0; i < D / 16; ++i)
#pragma unroll
    for (int r = 0; r < 4; ++r) q.f[i][r] ^= zero;
}
template <class Elem, int D>
__device__ __forceinline__ KRow<D> load_k(const Elem* src, unsigned ld, int row, int t) {
  KRow<D> k;
#pragma unroll
  for (int i = 0; i < D / 32; ++i) k.v[i] = load16(src, static_cast<unsigned>(row) * ld + 8 * t + 32 * i);
  return k;
}
template <class Elem, int D>
__device__ __forceinline__ VRow<D> load_v(const Elem* src, unsigned ld, int row, int g) {
  VRow<D> v;
  const Elem* at = src + static_cast<unsigned>(row) * ld + D / 8 * g;
  if constexpr (D == 64) {
    const uint4 x = *reinterpret_cast<const uint4*>(at);
    v.w[0] = x.x;
    v.w[1] = x.y;
    v.w[2] = x.z;
    v.w[3] = x.w;
  } else {
    static_assert(D == 32);
    const uint2 x = *reinterpret_cast<const uint2*>(at);
    v.w[0] = x.x;
    v.w[1] = x.y;
  }
  return v;
}
// Key of V's fragment row r (0..3) of k-step s within a chunk.
__device__ __forceinline__ int v_key(int s, int r, int t) { return 16 * s + 2 * t + (r & 1) + (r >> 1) * 8; }

// Scores of 16 queries against eight keys.
template <class Elem, int D>
__device__ __forceinline__ void score_tile(float (&s)[4], const QTile<D>& q, const KRow<D>& k) {
  s[0] = s[1] = s[2] = s[3] = 0.0f;
#pragma unroll
  for (int i = 0; i < D / 32; ++i) {
    mma_16816<Elem>(s, q.f[2 * i], k.v[i].x, k.v[i].y);
    mma_16816<Elem>(s, q.f[2 * i + 1], k.v[i].z, k.v[i].w);
  }
}
// Masks scores past `left`, the last valid key of a chunk: for keys 8j .. 8j+7, and for all.
__device__ __forceinline__ void mask_eight(float (&s)[4], int j, int left, int t) {
#pragma unroll
  for (int e = 0; e < 4; ++e)
    if (8 * j + 2 * t + (e & 1) > left) s[e] = -INFINITY;
}
__device__ __forceinline__ void mask_keys(float (&s)[4][4], int left, int t) {
#pragma unroll
  for (int j = 0; j < 4; ++j) mask_eight(s[j], j, left, t);
}

// Masks scores of 16 queries against a chunk of 32 keys outside the window. `place` is the position of the lane's first
// query, `key` that of the chunk's first key.
__device__ __forceinline__ void mask_window(float (&s)[4][4], int window, int place, int key, int t) {
#pragma unroll
  for (int j = 0; j < 4; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (abs(place + 8 * (e >> 1) - (key + 8 * j + 2 * t + (e & 1))) > window) s[j][e] = -INFINITY;
}
// Whether queries first .. first + 15 see every key of a chunk.
__device__ __forceinline__ bool all_seen(int window, int first, int key) {
  return window == 0 || (key + kChunkKeys - 1 - first <= window && first + 15 - key <= window);
}
// Range of keys, rounded to multiples of `step`, that queries first .. first + count - 1 see among n.
struct KeyRange {
  int first, end;
};
__device__ __forceinline__ KeyRange seen_keys(int window, int first, int count, int n, int step) {
  if (window == 0) return {0, n};
  return {max(0, first - window) / step * step, min(n, first + count + window)};
}

// Whether the output is fp8.
template <AttentionMode kMode>
__device__ __forceinline__ bool writes_fp8(const AttentionProblem& p) {
  if constexpr (kMode == AttentionMode::biased || kMode == AttentionMode::rotary)
    return p.out_scale != nullptr;
  else
    return kMode == AttentionMode::fp8_out;
}

// Bias of a score for its distance (key position - query position), before scaling.
__device__ __forceinline__ float bias_of(const AttentionProblem& p, int head, int distance) {
  const int width = 2 * p.reach + 1, at = min(max(distance, -p.reach), p.reach) + p.reach;
  return __ldg(p.bias + head * width + at) * p.unscale;
}
// Adds the bias to the scores of a chunk; positions as above.
__device__ __forceinline__ void add_bias(float (&s)[4][4], const AttentionProblem& p, int head, int place, int key,
                                         int t) {
#pragma unroll
  for (int j = 0; j < 4; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) s[j][e] += bias_of(p, head, key + 8 * j + 2 * t + (e & 1) - place - 8 * (e >> 1));
}

// Dropout of probabilities: row (query, head), column key.
__device__ __forceinline__ uint64_t drop_row(const AttentionProblem& p, int query, int head) {
  return (p.drop.first_row + static_cast<uint64_t>(query)) * static_cast<uint64_t>(p.heads) +
         static_cast<uint64_t>(head);
}
// A lane's hash state for the rows of its tile. A hash covers four keys, which belong to two lanes: each hashes one
// row, the even lane row g and the odd lane row g + 8, and they exchange halves.
struct DropLane {
  uint64_t row;
  uint32_t limit;
  bool odd;
};
__device__ __forceinline__ DropLane drop_lane(const AttentionProblem& p, int query, int head, int t) {
  const bool odd = (t & 1) != 0;
  return {dropout_row(p.drop.seed, drop_row(p, odd ? query + 8 : query, head)), drop_limit(p.drop), odd};
}
// 16 bits for each of a lane's four probabilities of eight keys: words[h] has keys 2t and 2t + 1 of row g + 8h.
// `columns` is dropout_columns of the quad that contains key 2t.
__device__ __forceinline__ void drop_words(uint32_t (&words)[2], const DropLane& lane, uint64_t columns) {
  const uint64_t bits = dropout_mix(lane.row, columns);
  const auto low = static_cast<uint32_t>(bits), high = static_cast<uint32_t>(bits >> 32);
  const uint32_t mine = lane.odd ? high : low, theirs = __shfl_xor_sync(~0u, lane.odd ? low : high, 1);
  words[0] = lane.odd ? theirs : mine;
  words[1] = lane.odd ? mine : theirs;
}
// Zeroes dropped probabilities; kept ones are scaled later with their row.
__device__ __forceinline__ void drop_probabilities(float (&s)[4][4], const DropLane& lane, uint32_t site, int first_key,
                                                   int t) {
  const uint64_t first = dropout_columns(site, static_cast<uint32_t>(first_key + 2 * t) / 4);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    uint32_t words[2];
    drop_words(words, lane, first + static_cast<uint64_t>(j) * (2 * kDropoutQuad));
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (words[h] << 16 <= lane.limit) s[j][2 * h] = 0.0f;
      if (words[h] <= lane.limit) s[j][2 * h + 1] = 0.0f;
    }
  }
}

template <class Elem>
__device__ __forceinline__ void pack_probabilities(Probs& p, const float (&s)[4][4]) {
#pragma unroll
  for (int j = 0; j < 4; ++j)
#pragma unroll
    for (int h = 0; h < 2; ++h) p.f[j / 2][2 * (j & 1) + h] = pack2<Elem>(s[j][2 * h], s[j][2 * h + 1]);
}

// Softmax of rows that fit in one chunk, normalised and multiplied by `out_scale`. Returns the log2-sum-exp2 of the
// rows.
__device__ __forceinline__ float2 softmax_whole(float (&s)[4][4], float scale_log2, float out_scale) {
  float lse[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {  // rows g and g + 8
    float top = s[0][2 * h];
#pragma unroll
    for (int j = 0; j < 4; ++j) top = fmaxf(top, fmaxf(s[j][2 * h], s[j][2 * h + 1]));
    const float shift = quad_max(top) * scale_log2;
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) sum += s[j][2 * h + e] = exp2_fast(fmaf(s[j][2 * h + e], scale_log2, -shift));
    sum = quad_sum(sum);
    lse[h] = shift + log2f(sum);
    const float share = __fdividef(out_scale, sum);
#pragma unroll
    for (int j = 0; j < 4; ++j) s[j][2 * h] *= share, s[j][2 * h + 1] *= share;
  }
  return make_float2(lse[0], lse[1]);
}

// Online softmax of longer rows. Exponentials are relative to `shift` (base 2, scaled), which is updated only if a row
// maximum exceeds it by more than kSlack: until then there are no reductions across lanes and no rescaling of the
// output. Sums and weights are up to 2^kSlack larger, with the same relative error.
constexpr float kSlack = 8.0f;
constexpr float kUnseen = -1e30f;  // below every score, but finite
template <int D>
struct Running {
  Accum<D> o;
  float shift[2], sum[2];  // sum: this lane's part
};
template <int D>
__device__ __forceinline__ void start(Running<D>& r) {
  clear(r.o);
  r.shift[0] = r.shift[1] = kUnseen;
  r.sum[0] = r.sum[1] = 0.0f;
}
// Updates the shifts for the scores of a chunk. One test covers all tiles, so that straight-line code follows in which
// the exponentials of one tile overlap with products of another.
template <int D, int kTiles>
__device__ __forceinline__ void follow_maxima(Running<D> (&r)[kTiles], const float (&s)[kTiles][4][4],
                                              float scale_log2) {
  float top[kTiles][2];
  bool above = false;
#pragma unroll
  for (int i = 0; i < kTiles; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      top[i][h] = fmaxf(s[i][0][2 * h], s[i][0][2 * h + 1]);
#pragma unroll
      for (int j = 1; j < 4; ++j) top[i][h] = fmaxf(top[i][h], fmaxf(s[i][j][2 * h], s[i][j][2 * h + 1]));
      above = above || fmaf(top[i][h], scale_log2, -r[i].shift[h]) > kSlack;
    }
  if (!__any_sync(~0u, above)) return;
#pragma unroll
  for (int i = 0; i < kTiles; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float shift = fmaxf(r[i].shift[h], quad_max(top[i][h]) * scale_log2),
                  shrink = exp2_fast(r[i].shift[h] - shift);
      r[i].shift[h] = shift;
      r[i].sum[h] *= shrink;
#pragma unroll
      for (int j = 0; j < D / 8; ++j) {
        r[i].o.c[j][2 * h] *= shrink;
        r[i].o.c[j][2 * h + 1] *= shrink;
      }
    }
}
template <int D>
__device__ __forceinline__ void exponentials(Running<D>& r, float (&s)[4][4], float scale_log2) {
#pragma unroll
  for (int h = 0; h < 2; ++h)
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int e = 2 * h; e < 2 * h + 2; ++e) {
        s[j][e] = exp2_fast(fmaf(s[j][e], scale_log2, -r.shift[h]));
        r.sum[h] += s[j][e];
      }
}

// O += P V for the 16 keys of k-step `step`, whose four V rows this lane holds.
template <class Elem, int D>
__device__ __forceinline__ void weigh_step(Accum<D>& o, const Probs& p, int step, const VRow<D> (&v)[4]) {
#pragma unroll
  for (int j = 0; j < D / 8; ++j) {
    const uint32_t pick = (j & 1) != 0 ? 0x7632 : 0x5410;
    mma_16816<Elem>(o.c[j], p.f[step], __byte_perm(v[0].w[j / 2], v[1].w[j / 2], pick),
                    __byte_perm(v[2].w[j / 2], v[3].w[j / 2], pick));
  }
}

// Stores rows first + g and first + g + 8 of the tile, times factor[h], to out[q_start + row].
template <class Elem, int D, AttentionMode kMode>
__device__ __forceinline__ void store_rows(const Accum<D>& o, const float (&factor)[2], void* out,
                                           const AttentionProblem& p, const AttentionSequence& seq, int first, int head,
                                           int g, int t) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = first + g + 8 * h;
    if (row >= seq.q_len) continue;
    const size_t at = static_cast<size_t>(seq.q_start + row) * p.ldo + head * D + D / 4 * t;
    float f[D / 4];
#pragma unroll
    for (int e = 0; e < 2; ++e)
#pragma unroll
      for (int j = 0; j < D / 8; ++j) f[D / 8 * e + j] = o.c[j][2 * h + e] * factor[h];
    if (writes_fp8<kMode>(p)) {
      auto* to = static_cast<uint8_t*>(out) + at;
      if constexpr (D == 64)
        *reinterpret_cast<uint4*>(to) =
            make_uint4(pack4_fp8(f[0], f[1], f[2], f[3]), pack4_fp8(f[4], f[5], f[6], f[7]),
                       pack4_fp8(f[8], f[9], f[10], f[11]), pack4_fp8(f[12], f[13], f[14], f[15]));
      else
        *reinterpret_cast<uint2*>(to) =
            make_uint2(pack4_fp8(f[0], f[1], f[2], f[3]), pack4_fp8(f[4], f[5], f[6], f[7]));
    } else {
      auto* to = reinterpret_cast<uint4*>(static_cast<Elem*>(out) + at);
#pragma unroll
      for (int i = 0; i < D / 32; ++i)
        to[i] = make_uint4(pack2<Elem>(f[8 * i], f[8 * i + 1]), pack2<Elem>(f[8 * i + 2], f[8 * i + 3]),
                           pack2<Elem>(f[8 * i + 4], f[8 * i + 5]), pack2<Elem>(f[8 * i + 6], f[8 * i + 7]));
    }
  }
}
// Like store_rows, for a tile with columns in dim order. Pairs of lanes exchange words, so that four lanes write 32
// contiguous bytes (16 for fp8).
template <class Elem, int D, AttentionMode kMode>
__device__ __forceinline__ void store_rows_in_order(const Accum<D>& o, const float (&factor)[2], void* out,
                                                    const AttentionProblem& p, const AttentionSequence& seq, int first,
                                                    int head, int g, int t) {
  const bool odd = (t & 1) != 0;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = first + g + 8 * h;
#pragma unroll
    for (int j = 0; j < D / 8; j += 2) {
      uint32_t w[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float a = o.c[j + i][2 * h] * factor[h], b = o.c[j + i][2 * h + 1] * factor[h];
        w[i] = writes_fp8<kMode>(p) ? pack2_fp8(a, b) : pack2<Elem>(a, b);
      }
      const uint32_t other = __shfl_xor_sync(~0u, odd ? w[0] : w[1], 1), low = odd ? other : w[0],
                     high = odd ? w[1] : other;
      if (row >= seq.q_len) continue;
      const size_t at = static_cast<size_t>(seq.q_start + row) * p.ldo + head * D + 8 * (j + (t & 1)) + 2 * (t & 2);
      if (writes_fp8<kMode>(p))
        *reinterpret_cast<uint32_t*>(static_cast<uint8_t*>(out) + at) = low | high << 16;
      else
        *reinterpret_cast<uint2*>(static_cast<Elem*>(out) + at) = make_uint2(low, high);
    }
  }
}
// Stores the log-sum-exp of the rows, given in base 2.
__device__ __forceinline__ void store_lse(const float (&lse_log2)[2], const AttentionProblem& p,
                                          const AttentionSequence& seq, int first, int head, int g, int t) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = first + g + 8 * h;
    if (t == 0 && row < seq.q_len)
      p.lse[static_cast<size_t>(seq.q_start + row) * p.heads + head] = lse_log2[h] * 0.693147181f;
  }
}

// ---- Keys and values in shared memory: rows of D elements, 16-byte pieces swizzled so that the fragment reads of K
// (two rows, four pieces) and of V (rows 0, 2, 4, 6) touch each bank once ----
template <int D>
__device__ __forceinline__ int staged_offset(int row, int piece) {
  if constexpr (D == 64)
    return row * 128 + ((piece ^ (((row & 1) << 2) ^ (row & 6))) << 4);
  else
    return (row >> 1) * 128 + ((((row & 1) << 2 | piece) ^ (row & 6)) << 4);
}
// Swizzle for values read as 8x8 matrices: one piece of eight rows.
template <int D>
__device__ __forceinline__ int matrix_offset(int row, int piece) {
  if constexpr (D == 64)
    return row * 128 + ((piece ^ (row & 7)) << 4);
  else
    return (row >> 1) * 128 + (((row & 1) << 2 | (piece ^ (row >> 1 & 3))) << 4);
}
template <int D>
__device__ __forceinline__ SharedAddress staged_at(SharedAddress base, int row, int piece) {
  return base + staged_offset<D>(row, piece);
}
template <class Elem, int D>
__device__ __forceinline__ void stage_rows(SharedAddress base, const Elem* src, unsigned ld, int rows) {
  constexpr int kPieces = D / 8;
  for (int i = threadIdx.x; i < rows * kPieces; i += blockDim.x)
    copy_async16(staged_at<D>(base, i / kPieces, i % kPieces),
                 src + static_cast<size_t>(i / kPieces) * ld + i % kPieces * 8);
}
template <int D>
__device__ __forceinline__ KRow<D> staged_k(SharedAddress base, int row, int t) {
  KRow<D> k;
#pragma unroll
  for (int i = 0; i < D / 32; ++i) k.v[i] = load_shared16(staged_at<D>(base, row, t + 4 * i));
  return k;
}
template <int D>
__device__ __forceinline__ VRow<D> staged_v(SharedAddress base, int row, int g) {
  VRow<D> v;
  if constexpr (D == 64) {
    const uint4 x = load_shared16(staged_at<D>(base, row, g));
    v.w[0] = x.x;
    v.w[1] = x.y;
    v.w[2] = x.z;
    v.w[3] = x.w;
  } else {
    const uint2 x = load_shared8(staged_at<D>(base, row, g >> 1) + (g & 1) * 8);
    v.w[0] = x.x;
    v.w[1] = x.y;
  }
  return v;
}
// Fragments of 16 keys staged as matrices, and O += P V with columns in dim order.
template <int D>
struct VTile {
  uint32_t f[D / 16][4];
};
template <int D>
__device__ __forceinline__ VTile<D> staged_matrices(SharedAddress base, int lane) {
  VTile<D> tile;
#pragma unroll
  for (int j = 0; j < D / 16; ++j)
    load_matrices<true>(tile.f[j], base + matrix_offset<D>(lane & 15, 2 * j + (lane >> 4)));
  return tile;
}
template <class Elem, int D>
__device__ __forceinline__ void weigh_matrices(Accum<D>& o, const uint32_t (&probs)[4], const VTile<D>& tile) {
#pragma unroll
  for (int j = 0; j < D / 16; ++j) {
    mma_16816<Elem>(o.c[2 * j], probs, tile.f[j][0], tile.f[j][1]);
    mma_16816<Elem>(o.c[2 * j + 1], probs, tile.f[j][2], tile.f[j][3]);
  }
}

}  // namespace brim::ops
