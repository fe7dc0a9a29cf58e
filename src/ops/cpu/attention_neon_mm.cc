// SPDX-License-Identifier: Apache-2.0
// Attention of one head in bf16 with bfmmla, for models with bf16 or int8 matmuls. One instruction multiplies two rows
// by two rows, four values deep, so queries, keys, probabilities and the columns of values are all stored as pairs:
// [pair][k / 4][2][4]. Queries are processed eight at a time: scores, softmax in fp32 with an exponential accurate to
// bf16 whose results are packed directly, output.
//
// For tweets and heads of size 32, fp32 reached 59 % of its peak on a Neoverse V1; bfmmla has four times that peak, and
// a layer takes half the time.
#include <arm_neon.h>

#include "ops/cpu/attention_kernels.h"

namespace brim::ops::neon_mm {
namespace {

using cpu::fetch_next;
using cpu::HeadArgs;
using cpu::round_up;

#define BRIM_INLINE inline __attribute__((always_inline))
#define BRIM_UNROLL _Pragma("GCC unroll 8")

using F = float32x4_t;
constexpr int kPairs = 4, kQueries = 2 * kPairs;  // per block
template <int kCount>
struct Pairs {
  static constexpr int value = kCount;
};

BRIM_INLINE F four_of(const void* x, int64_t at, bool bf16) {
  if (!bf16) return vld1q_f32(static_cast<const float*>(x) + at);
  return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(static_cast<const uint16_t*>(x) + at), 16));
}
BRIM_INLINE bfloat16x8_t pair_of(F even, F odd) { return vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(even), odd); }
BRIM_INLINE void store_pair(uint16_t* to, F even, F odd) { vst1q_u16(to, vreinterpretq_u16_bf16(pair_of(even, odd))); }

// Packs rows to pairs [rows / 2][D / 4][2][4]; rows from `rows` up to `padded` are zero.
BRIM_INLINE void pack_pairs(const void* x, int64_t ld, int64_t rows, int64_t padded, int64_t D, bool bf16,
                            uint16_t* out) {
  for (int64_t r = 0; r < padded; r += 2)
    for (int64_t d = 0; d < D; d += 4, out += 8)
      store_pair(out, r < rows ? four_of(x, r * ld + d, bf16) : vdupq_n_f32(0),
                 r + 1 < rows ? four_of(x, (r + 1) * ld + d, bf16) : vdupq_n_f32(0));
}

// Packs values to pairs of columns [D / 2][L / 4][2][4 keys].
void pack_values(const void* v, int64_t ld, int64_t keys, int64_t L, int64_t D, bool bf16, uint16_t* out) {
  const int64_t next = 2 * L;  // stride between pairs of columns
  for (int64_t key = 0; key < L; key += 4)
    for (int64_t d = 0; d < D; d += 4) {
      F row[4];
      BRIM_UNROLL
      for (int i = 0; i < 4; ++i) row[i] = key + i < keys ? four_of(v, (key + i) * ld + d, bf16) : vdupq_n_f32(0);
      const float32x4x2_t a = vtrnq_f32(row[0], row[1]), b = vtrnq_f32(row[2], row[3]);
      const auto join = [](F x, F y, bool high) {
        const float64x2_t p = vreinterpretq_f64_f32(x), q = vreinterpretq_f64_f32(y);
        return vreinterpretq_f32_f64(high ? vtrn2q_f64(p, q) : vtrn1q_f64(p, q));
      };
      uint16_t* to = out + d / 2 * next + key * 2;
      store_pair(to, join(a.val[0], b.val[0], false), join(a.val[1], b.val[1], false));
      store_pair(to + next, join(a.val[0], b.val[0], true), join(a.val[1], b.val[1], true));
    }
}

// Rows 2i and 2i + 1 of the product of kRowPairs by two pairs of columns, as vectors of four.
template <int kRowPairs, int kColumnPairs>
struct Squares {
  F c[kRowPairs][kColumnPairs];
  BRIM_INLINE F row(int i, int j, int odd) const {  // j: a pair of pairs
    const float64x2_t left = vreinterpretq_f64_f32(c[i][j]), right = vreinterpretq_f64_f32(c[i][j + 1]);
    return vreinterpretq_f32_f64(odd != 0 ? vtrn2q_f64(left, right) : vtrn1q_f64(left, right));
  }
};

template <int kRowPairs, int kColumnPairs>
BRIM_INLINE Squares<kRowPairs, kColumnPairs> multiply(const uint16_t* a, int64_t next_a, const uint16_t* b,
                                                      int64_t next_b, int64_t groups) {
  Squares<kRowPairs, kColumnPairs> s;
  BRIM_UNROLL
  for (int i = 0; i < kRowPairs; ++i) {
    BRIM_UNROLL
    for (int j = 0; j < kColumnPairs; ++j) s.c[i][j] = vdupq_n_f32(0);
  }
  for (int64_t k = 0; k < groups; ++k, a += 8, b += 8) {
    bfloat16x8_t rows[kRowPairs];
    BRIM_UNROLL
    for (int i = 0; i < kRowPairs; ++i) rows[i] = vreinterpretq_bf16_u16(vld1q_u16(a + i * next_a));
    BRIM_UNROLL
    for (int j = 0; j < kColumnPairs; ++j) {
      const bfloat16x8_t columns = vreinterpretq_bf16_u16(vld1q_u16(b + j * next_b));
      BRIM_UNROLL
      for (int i = 0; i < kRowPairs; ++i) s.c[i][j] = vbfmmlaq_f32(s.c[i][j], rows[i], columns);
    }
  }
  return s;
}

// 2^y for y <= 0 with error 1e-4, from the fraction above the floor; at least 2^-126.
BRIM_INLINE F exp2_short(F y) {
  y = vmaxq_f32(y, vdupq_n_f32(-126.0f));
  const F n = vrndmq_f32(y), f = vsubq_f32(y, n);
  F p = vdupq_n_f32(0.07802452f);
  p = vfmaq_f32(vdupq_n_f32(0.22606716f), p, f);
  p = vfmaq_f32(vdupq_n_f32(0.69583356f), p, f);
  p = vfmaq_f32(vdupq_n_f32(0.9999252f), p, f);
  return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(p), vshlq_n_s32(vcvtq_s32_f32(n), 23)));
}

// Converts two rows of scores to a pair of probabilities, not yet divided by their sums, and returns the inverse sums.
// Keys past the last have scores low enough to vanish.
BRIM_INLINE float32x2_t softmax_pair(const float* even, const float* odd, int64_t L, float c, uint16_t* out) {
  F top0 = vld1q_f32(even), top1 = vld1q_f32(odd);
  for (int64_t j = 4; j < L; j += 4) {
    top0 = vmaxq_f32(top0, vld1q_f32(even + j));
    top1 = vmaxq_f32(top1, vld1q_f32(odd + j));
  }
  const F factor = vdupq_n_f32(c), down0 = vdupq_n_f32(-c * vmaxvq_f32(top0)),
          down1 = vdupq_n_f32(-c * vmaxvq_f32(top1));
  F sum0 = vdupq_n_f32(0), sum1 = sum0;
  for (int64_t j = 0; j < L; j += 4) {
    const F p0 = exp2_short(vfmaq_f32(down0, vld1q_f32(even + j), factor)),
            p1 = exp2_short(vfmaq_f32(down1, vld1q_f32(odd + j), factor));
    sum0 = vaddq_f32(sum0, p0);
    sum1 = vaddq_f32(sum1, p1);
    store_pair(out + 2 * j, p0, p1);
  }
  const F sums = vpaddq_f32(sum0, sum1);
  return vdiv_f32(vdup_n_f32(1), vpadd_f32(vget_low_f32(sums), vget_high_f32(sums)));
}

struct Room {
  uint16_t *q, *k, *v, *p;  // pairs: a block of queries, all keys, all columns of values, probabilities of a block
  float* scores;            // [kQueries][L]
  int64_t L;
};

BRIM_INLINE void store_four(const HeadArgs& a, int64_t row, int64_t d, F x) {
  if (a.bf16_out)
    vst1_u16(static_cast<uint16_t*>(a.out) + row * a.ld_out + d, vreinterpret_u16_bf16(vcvt_bf16_f32(x)));
  else
    vst1q_f32(static_cast<float*>(a.out) + row * a.ld_out + d, x);
}

// Queries [first, first + 2 * kBlockPairs); the last one may be missing.
template <int kBlockPairs>
void attend_block(const HeadArgs& a, const Room& room, int64_t first) {
  const int64_t D = a.D, L = room.L,
                queries = a.queries - first < 2 * kBlockPairs ? a.queries - first : 2 * kBlockPairs;
  const int64_t size = a.bf16_in ? 2 : 4;
  pack_pairs(static_cast<const char*>(a.q) + first * a.ld_q * size, a.ld_q, queries, 2 * kBlockPairs, D, a.bf16_in,
             room.q);
  const auto scores_of = [&](auto pairs, int64_t key) {
    constexpr int kKeyPairs = decltype(pairs)::value;
    const auto s = multiply<kBlockPairs, kKeyPairs>(room.q, 2 * D, room.k + key * D, 2 * D, D / 4);
    BRIM_UNROLL
    for (int i = 0; i < kBlockPairs; ++i) {
      BRIM_UNROLL
      for (int j = 0; j < kKeyPairs; j += 2) {
        vst1q_f32(room.scores + 2 * i * L + key + 2 * j, s.row(i, j, 0));
        vst1q_f32(room.scores + (2 * i + 1) * L + key + 2 * j, s.row(i, j, 1));
      }
    }
  };
  int64_t key = 0;
  for (; key + 8 <= L; key += 8) scores_of(Pairs<4>(), key);
  if (key < L) scores_of(Pairs<2>(), key);
  float inverse[2 * kBlockPairs];
  BRIM_UNROLL
  for (int i = 0; i < kBlockPairs; ++i) {
    float* even = room.scores + 2 * i * L;
    for (int r = 0; r < 2; ++r) {
      fetch_next(a, first + 2 * i + r);
      if (a.bias.at != nullptr) cpu::add_bias(a.bias, a.first_query + first + 2 * i + r, a.keys, a.scale, even + r * L);
      for (int64_t j = a.keys; j < L; ++j) even[r * L + j] = -1e30f;
    }
    vst1_f32(inverse + 2 * i, softmax_pair(even, even + L, L, a.scale * 1.44269504f, room.p + 2 * i * L));
  }
  for (int64_t d = 0; d < D; d += 8) {
    const auto s = multiply<kBlockPairs, 4>(room.p, 2 * L, room.v + d * L, 2 * L, L / 4);
    BRIM_UNROLL
    for (int i = 0; i < 2 * kBlockPairs; ++i) {
      if (i >= queries) break;
      store_four(a, first + i, d, vmulq_n_f32(s.row(i / 2, 0, i % 2), inverse[i]));
      store_four(a, first + i, d + 4, vmulq_n_f32(s.row(i / 2, 2, i % 2), inverse[i]));
    }
  }
}

void attend(const HeadArgs& a) {
  const int64_t L = round_up(a.keys, 4), D = a.D;
  auto* at = reinterpret_cast<uint16_t*>(a.scratch);
  const auto take = [&](int64_t count) {
    uint16_t* here = at;
    at += round_up(count, 32);
    return here;
  };
  Room room{};
  room.L = L;
  room.k = take(L * D);
  room.v = take(L * D);
  room.q = take(kQueries * D);
  room.p = take(kQueries * L);
  room.scores = reinterpret_cast<float*>(take(2 * kQueries * L));
  pack_pairs(a.k, a.ld_k, a.keys, L, D, a.bf16_in, room.k);
  pack_values(a.v, a.ld_v, a.keys, L, D, a.bf16_in, room.v);
  // Pairs are distributed evenly over the fewest blocks.
  const int64_t pairs = (a.queries + 1) / 2, blocks = (pairs + kPairs - 1) / kPairs;
  for (int64_t b = 0, pair = 0; b < blocks; ++b) {
    const int64_t count = (pairs - pair + blocks - b - 1) / (blocks - b);
    switch (count) {
      case 1:
        attend_block<1>(a, room, 2 * pair);
        break;
      case 2:
        attend_block<2>(a, room, 2 * pair);
        break;
      case 3:
        attend_block<3>(a, room, 2 * pair);
        break;
      default:
        attend_block<4>(a, room, 2 * pair);
    }
    pair += count;
  }
}

void nothing() {}

// Eight columns of values make a tile; one or two queries are faster in fp32, which needs no packing.
bool takes(int64_t queries, int64_t keys, int64_t D) { return D % 8 == 0 && queries >= 4 && keys >= 4; }

}  // namespace

extern const cpu::Bf16AttentionKernels kAttentionKernels = {
    .name = "neon_mm_bf16", .takes = takes, .begin = nothing, .attend = attend, .end = nothing};

}  // namespace brim::ops::neon_mm
