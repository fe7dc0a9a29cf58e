// SPDX-License-Identifier: Apache-2.0
// Attention of one head in bf16 on AMX tiles, for models with bf16 or int8 matmuls. Queries are processed 32 at a time:
// two by two tiles of scores, softmax in fp32 with an exponential accurate to bf16, two by two tiles of output. Keys
// are converted to the tile unit's right-hand layout by transposing pairs, values by interleaving two rows. For 128
// keys of size 64 the tiles take 4,100 cycles per head and the softmax about the same, hence the short exponential.
#include "ops/cpu/attention_kernels.h"
#include "ops/cpu/vec.h"

namespace brim::ops::amx {
namespace {

using cpu::fetch_next;
using cpu::HeadArgs;
using cpu::round_up;

constexpr int kTile = 16, kBlock = 32;  // rows or columns of a tile; queries per block, and keys per step
constexpr int64_t kTileBytes = 1024;

alignas(64) const struct TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
} kConfig;

// 32 values of a row as bf16, converted from fp32 if needed.
BRIM_VEC __m512i row_of_32(const void* row, int64_t at, bool bf16) {
  if (bf16) return _mm512_loadu_si512(static_cast<const uint16_t*>(row) + at);
  const float* x = static_cast<const float*>(row) + at;
  return (__m512i)_mm512_cvtne2ps_pbh(load(x + 16), load(x));
}
BRIM_VEC const void* row_at(const void* x, int64_t ld, int64_t row, bool bf16) {
  return static_cast<const char*>(x) + row * ld * (bf16 ? 2 : 4);
}

// Converts rows to bf16, 16 at a time: out [padded][D]; rows past the last are zero.
void pack_rows(const void* x, int64_t ld, int64_t rows, int64_t padded, int64_t D, bool bf16, uint16_t* out) {
  for (int64_t r = 0; r < padded; ++r)
    for (int64_t d = 0; d < D; d += 32)
      _mm512_store_si512(out + r * D + d,
                         r < rows ? row_of_32(row_at(x, ld, r, bf16), d, bf16) : _mm512_setzero_si512());
}

// Packs keys [padded][D] in bf16 to tiles [key / 16][d / 32]: row i of a tile holds the pair d = 2i, 2i+1 of each of 16
// keys.
void pack_keys(const uint16_t* rows, int64_t padded, int64_t D, char* out) {
  for (int64_t key = 0; key < padded; key += kTile)
    for (int64_t d = 0; d < D; d += 32, out += kTileBytes) {
      const float* row[kTile];
      for (int i = 0; i < kTile; ++i) row[i] = reinterpret_cast<const float*>(rows + (key + i) * D + d);
      transpose(row, reinterpret_cast<float*>(out), kTile);
    }
}

// Packs values to tiles [key / 32][d / 16]: row i of a tile holds keys 2i, 2i+1 of each of 16 columns. Rows past the
// last are zero.
void pack_values(const void* v, int64_t ld, int64_t keys, int64_t padded, int64_t D, bool bf16, char* out) {
  // Words 0, 32, 1, 33, …: the low halves of two rows of 32 interleaved; then the high halves.
  alignas(64) uint16_t low_index[32], high_index[32];
  for (int i = 0; i < 32; ++i) {
    low_index[i] = static_cast<uint16_t>(i / 2 + i % 2 * 32);
    high_index[i] = static_cast<uint16_t>(16 + i / 2 + i % 2 * 32);
  }
  const __m512i low = _mm512_load_si512(low_index), high = _mm512_load_si512(high_index), none = _mm512_setzero_si512();
  const int64_t tiles = D / kTile;
  for (int64_t key = 0; key < padded; key += 2) {
    char* row = out + key / kBlock * tiles * kTileBytes + key % kBlock / 2 * 64;
    for (int64_t d = 0; d < D; d += 32, row += 2 * kTileBytes) {
      const __m512i a = key < keys ? row_of_32(row_at(v, ld, key, bf16), d, bf16) : none;
      const __m512i b = key + 1 < keys ? row_of_32(row_at(v, ld, key + 1, bf16), d, bf16) : none;
      _mm512_store_si512(row, _mm512_permutex2var_epi16(a, low, b));
      _mm512_store_si512(row + kTileBytes, _mm512_permutex2var_epi16(a, high, b));
    }
  }
}

// c[0..32][32 columns at ld_c] = a [32 rows][steps * 32] b: `a` in rows of ld_a bytes, `b` in tiles along the columns,
// b_step bytes apart between steps. Only one row of tiles if rows <= 16.
BRIM_VEC void multiply_block(const char* a, int64_t ld_a, const char* b, int64_t b_column, int64_t b_step,
                             int64_t steps, bool two_rows, float* c, int64_t ld_c) {
  _tile_zero(0);
  _tile_zero(1);
  if (two_rows) {
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t k = 0; k < steps; ++k, a += 64, b += b_step) {
      _tile_loadd(4, a, ld_a);
      _tile_loadd(6, b, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, b + b_column, 64);
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(5, a + kTile * ld_a, ld_a);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(2, c + kTile * ld_c, ld_c * 4);
    _tile_stored(3, c + kTile * ld_c + kTile, ld_c * 4);
  } else {
    for (int64_t k = 0; k < steps; ++k, a += 64, b += b_step) {
      _tile_loadd(4, a, ld_a);
      _tile_loadd(6, b, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, b + b_column, 64);
      _tile_dpbf16ps(1, 4, 7);
    }
  }
  _tile_stored(0, c, ld_c * 4);
  _tile_stored(1, c + kTile, ld_c * 4);
}

// 2^y for y <= 0 with error 1e-4: scalef uses the floor of y itself, so only the fraction in [0, 1) is approximated.
BRIM_VEC F exp2_short(F y) {
  const F f = _mm512_reduce_ps(y, 0x09);  // y - floor(y)
  F p = set1(0.07802452f);
  p = fma(p, f, set1(0.22606716f));
  p = fma(p, f, set1(0.69583356f));
  p = fma(p, f, set1(0.9999252f));
  return _mm512_scalef_ps(p, y);
}

// Maximum of each of four vectors, in the first four lanes.
BRIM_VEC __m128 max_of_four(F a, F b, F c, F d) {
  const F ab = max(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)),
          cd = max(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  const F four = max(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xEE));
  const __m256 half = _mm256_max_ps(_mm512_castps512_ps256(four), _mm512_extractf32x8_ps(four, 1));
  return _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}
BRIM_VEC __m128 sum_of_four(F a, F b, F c, F d) {
  const F ab = add(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)),
          cd = add(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  const F four = add(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xEE));
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(four), _mm512_extractf32x8_ps(four, 1));
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

// Converts four rows of scores s [4][L] to bf16 probabilities (not yet divided by their sums) in the first half of the
// same rows. Writes advance at half the rate of reads, so they never overtake them; keys past the last get 0. Returns
// the sums.
BRIM_VEC __m128 softmax_four(float* s, int64_t L, int64_t keys, float c) {
  F top[4];
  const M tail = keys % kTile == 0 ? static_cast<M>(0xFFFF) : first(static_cast<int>(keys % kTile));
  const int64_t whole = (keys - 1) / kTile * kTile;  // start of the last vector that contains a key
  const F least = set1(-__builtin_inff());
  for (int r = 0; r < 4; ++r) {
    F most = _mm512_mask_blend_ps(tail, least, load(s + r * L + whole));
    for (int64_t j = 0; j < whole; j += kTile) most = max(most, load(s + r * L + j));
    top[r] = most;
  }
  const __m128 most = max_of_four(top[0], top[1], top[2], top[3]);
  const __m128 shift = _mm_mul_ps(most, _mm_set1_ps(-c));
  const F factor = set1(c);
  F sum[4];
  for (int r = 0; r < 4; ++r) {
    const F down = _mm512_broadcastss_ps(r == 0   ? shift
                                         : r == 1 ? _mm_shuffle_ps(shift, shift, 0x55)
                                         : r == 2 ? _mm_shuffle_ps(shift, shift, 0xAA)
                                                  : _mm_shuffle_ps(shift, shift, 0xFF));
    auto* p = reinterpret_cast<uint16_t*>(s + r * L);
    F total = zero();
    for (int64_t j = 0; j < L; j += kBlock) {
      F a = exp2_short(fma(load(s + r * L + j), factor, down)),
        b = exp2_short(fma(load(s + r * L + j + kTile), factor, down));
      if (j + kBlock > keys) {
        const int64_t left = keys - j;
        a = select(first(static_cast<int>(left < kTile ? left : kTile)), a, zero());
        b = left > kTile ? select(first(static_cast<int>(left - kTile)), b, zero()) : zero();
      }
      total = add(total, add(a, b));
      _mm512_store_si512(p + j, (__m512i)_mm512_cvtne2ps_pbh(b, a));
    }
    sum[r] = total;
  }
  return sum_of_four(sum[0], sum[1], sum[2], sum[3]);
}

void attend(const HeadArgs& a) {
  const int64_t L = round_up(a.keys, kBlock), D = a.D, steps = D / 32;
  char* at = reinterpret_cast<char*>(a.scratch);
  const auto take = [&](int64_t bytes) {
    char* here = at;
    at += bytes;
    return here;
  };
  auto* rows = reinterpret_cast<uint16_t*>(take(L * D * 2));  // keys in bf16; then a block of queries
  char* keys = take(L * D * 2);
  char* values = take(L * D * 2);
  auto* scores = reinterpret_cast<float*>(take(kBlock * L * 4));
  auto* sums = reinterpret_cast<float*>(take(kBlock * kBlock * 4));
  alignas(64) float inverse[kBlock];
  const float c = a.scale * 1.44269504f;

  pack_rows(a.k, a.ld_k, a.keys, L, D, a.bf16_in, rows);
  pack_keys(rows, L, D, keys);
  pack_values(a.v, a.ld_v, a.keys, L, D, a.bf16_in, values);
  for (int64_t first_query = 0; first_query < a.queries; first_query += kBlock) {
    const int64_t queries = a.queries - first_query < kBlock ? a.queries - first_query : kBlock;
    const bool two_rows = queries > kTile;
    pack_rows(row_at(a.q, a.ld_q, first_query, a.bf16_in), a.ld_q, queries, two_rows ? kBlock : kTile, D, a.bf16_in,
              rows);
    for (int64_t key = 0; key < L; key += kBlock)
      multiply_block(reinterpret_cast<const char*>(rows), D * 2, keys + key / kTile * steps * kTileBytes,
                     steps * kTileBytes, kTileBytes, steps, two_rows, scores + key, L);
    for (int64_t i = 0; i < round_up(queries, 4); i += 4) {
      for (int64_t r = i; r < i + 4; ++r) fetch_next(a, first_query + r);
      if (a.bias.at != nullptr)
        for (int64_t r = i; r < i + 4; ++r)
          cpu::add_bias(a.bias, a.first_query + first_query + r, a.keys, a.scale, scores + r * L);
      _mm_store_ps(inverse + i, _mm_div_ps(_mm_set1_ps(1.0f), softmax_four(scores + i * L, L, a.keys, c)));
    }
    for (int64_t d = 0; d < D; d += kBlock) {
      multiply_block(reinterpret_cast<const char*>(scores), L * 4, values + d / kTile * kTileBytes, kTileBytes,
                     D / kTile * kTileBytes, L / kBlock, two_rows, sums, kBlock);
      for (int64_t i = 0; i < queries; ++i) {
        const F factor = set1(inverse[i]), low = mul(load(sums + i * kBlock), factor),
                high = mul(load(sums + i * kBlock + kTile), factor);
        const int64_t to = (first_query + i) * a.ld_out + d;
        if (a.bf16_out) {
          _mm512_storeu_si512(static_cast<uint16_t*>(a.out) + to, (__m512i)_mm512_cvtne2ps_pbh(high, low));
        } else {
          store(static_cast<float*>(a.out) + to, low);
          store(static_cast<float*>(a.out) + to + kTile, high);
        }
      }
    }
  }
}

// The tile configuration is set once for many heads, because it takes 200 cycles.
void begin() { asm volatile("ldtilecfg %0" ::"m"(kConfig)); }
void end() { _tile_release(); }

// Tiles are 16 rows by pairs of 32: shorter sequences and other head sizes use them poorly.
bool takes(int64_t queries, int64_t keys, int64_t D) { return D % 32 == 0 && queries >= 8 && keys >= 8; }

}  // namespace

extern const cpu::Bf16AttentionKernels kAttentionKernels = {
    .name = "amx_bf16", .takes = takes, .begin = begin, .attend = attend, .end = end};

}  // namespace brim::ops::amx
