// SPDX-License-Identifier: Apache-2.0
// AMX kernels: four accumulator tiles of 16 x 16 form a block of 32 rows by 32 columns; a step of k is 32 values of
// bf16 or 64 of int8. While the tile unit multiplies one block, the vector units finish the previous one (bias,
// activation, store): a row or two after every step. With every operand in L1 a step takes 69 cycles (64 is the
// minimum of the unit); in bf16, 32 columns of K = 768 fill L1, and rows then arrive from L2 at about 40 bytes per
// cycle. Splitting K so that columns fit next to rows did not pay off: sums then go through memory (-12 % at K = 768 on
// 16 cores). fp32 has no tile arithmetic and uses the AVX-512 kernel.
#include "ops/gemm/finish.h"
#include "ops/gemm/rows.h"

namespace brim::ops::gemm {
namespace {

constexpr int kTile = 16, kBlock = 32;  // rows or columns of a tile and of a block
constexpr int kTileBytes = kTile * 64;  // packed rows and columns are whole tiles, consecutive along k

alignas(64) const struct TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
} kConfig;

// Tile registers: 0..3 sums, row-major over the block; 4, 5 rows; 6, 7 columns.
template <bool kInt>
BRIM_INLINE void multiply_00() {
  if constexpr (kInt)
    _tile_dpbssd(0, 4, 6);
  else
    _tile_dpbf16ps(0, 4, 6);
}
template <bool kInt>
BRIM_INLINE void multiply_01() {
  if constexpr (kInt)
    _tile_dpbssd(1, 4, 7);
  else
    _tile_dpbf16ps(1, 4, 7);
}
template <bool kInt>
BRIM_INLINE void multiply_10() {
  if constexpr (kInt)
    _tile_dpbssd(2, 5, 6);
  else
    _tile_dpbf16ps(2, 5, 6);
}
template <bool kInt>
BRIM_INLINE void multiply_11() {
  if constexpr (kInt)
    _tile_dpbssd(3, 5, 7);
  else
    _tile_dpbf16ps(3, 5, 7);
}

// Sums of a block to be finished, row by row.
template <Act kAct, bool kInt, bool kBf16>
struct Pending {
  const char* acc = nullptr;
  int64_t row = 0, col = 0;
  int rows = 0, next = 0, cols = 0;

  BRIM_INLINE void some(const Block& b, int count) {
    for (; count > 0 && next < rows; --count, ++next) {
      const char* at = acc + next * kBlock * 4;
      const F scale = kInt ? set1(b.a_scale[row + next]) : set1(0.0f);
      if (cols == kBlock) {
        finish_vector<kAct, kInt, kBf16>(b, at, row + next, col, scale);
        finish_vector<kAct, kInt, kBf16>(b, at + 64, row + next, col + 16, scale);
        continue;
      }
      int c = 0;
      for (; c + kLanes <= cols; c += kLanes)
        finish_vector<kAct, kInt, kBf16>(b, at + c * 4, row + next, col + c, scale);
      if (c < cols) finish_vector<kAct, kInt, kBf16>(b, at + c * 4, row + next, col + c, scale, tail(cols - c));
    }
  }
};

// One step of k for a block of one or two tiles each way. Rows use streaming loads (they come from L2 and are not
// needed again before the next columns), so that the columns stay in L1.
template <bool kInt, bool kTwoRows, bool kTwoColumns>
BRIM_INLINE void multiply_step(const char* a, const char* w, int64_t panel_bytes) {
  _tile_loadd(6, w, 64);
  _tile_stream_loadd(4, a, 64);
  multiply_00<kInt>();
  if constexpr (kTwoRows) {
    _tile_stream_loadd(5, a + panel_bytes, 64);
    multiply_10<kInt>();
  }
  if constexpr (kTwoColumns) {
    _tile_loadd(7, w + panel_bytes, 64);
    multiply_01<kInt>();
  }
  if constexpr (kTwoRows && kTwoColumns) multiply_11<kInt>();
}

// Weights come from the shared cache or memory and arrive too late without prefetching: while two panels are used for
// several blocks of rows, the next two are prefetched in equal parts. With a single block of rows the hardware
// prefetcher is as good.
struct Ahead {
  const char* at[2];  // in each panel
  int lines;          // prefetched per panel and step

  BRIM_INLINE void fetch() {
    for (int i = 0; i < lines; ++i) {
      _mm_prefetch(at[0] + i * 64, _MM_HINT_T1);
      _mm_prefetch(at[1] + i * 64, _MM_HINT_T1);
    }
    at[0] += lines * 64;
    at[1] += lines * 64;
  }
};

template <Act kAct, bool kInt, bool kBf16>
void run_blocks(const Block& b) {
  constexpr int kStep = kInt ? 64 : 32;
  const int64_t steps = (b.K + kStep - 1) / kStep, panel_bytes = steps * kTileBytes;
  const int row_blocks = static_cast<int>((b.m + kBlock - 1) / kBlock);
  const int share = steps > 0 ? static_cast<int>((kBlock + steps - 1) / steps) : 0;
  alignas(64) char buffers[2][kBlock * kBlock * 4];
  int buffer = 0;
  Pending<kAct, kInt, kBf16> pending;

  for (int64_t n = b.n_begin; n < b.n_end; n += kBlock) {
    const int cols = static_cast<int>(kBlock < b.n_end - n ? kBlock : b.n_end - n);
    const bool two_columns = cols > kTile, last = n + kBlock >= b.n_end;
    const char* columns = static_cast<const char*>(b.b) + n / kTile * panel_bytes;
    Ahead ahead{{columns + 2 * panel_bytes, columns + 3 * panel_bytes},
                last || row_blocks == 1 ? 0 : (16 + row_blocks - 1) / row_blocks};
    for (int64_t m = 0; m < b.m; m += kBlock) {
      const int rows = static_cast<int>(b.m - m < kBlock ? b.m - m : kBlock);
      const bool two_rows = rows > kTile;
      const char* a = static_cast<const char*>(b.a) + m / kTile * panel_bytes;
      const char* w = columns;
      char* out = buffers[buffer];
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
      const auto multiply = [&]<bool kTwoRows, bool kTwoColumns>() {
        for (int64_t k = 0; k < steps; ++k, a += kTileBytes, w += kTileBytes) {
          ahead.fetch();
          multiply_step<kInt, kTwoRows, kTwoColumns>(a, w, panel_bytes);
          pending.some(b, share);
        }
      };
      if (two_rows)
        two_columns ? multiply.template operator()<true, true>() : multiply.template operator()<true, false>();
      else
        two_columns ? multiply.template operator()<false, true>() : multiply.template operator()<false, false>();
      pending.some(b, kBlock);
      _tile_stored(0, out, kBlock * 4);
      if (two_columns) _tile_stored(1, out + 64, kBlock * 4);
      if (two_rows) _tile_stored(2, out + kTile * kBlock * 4, kBlock * 4);
      if (two_rows && two_columns) _tile_stored(3, out + kTile * kBlock * 4 + 64, kBlock * 4);
      pending = {out, m, n, rows, 0, cols};
      buffer ^= 1;
    }
  }
  pending.some(b, kBlock);
}

template <bool kInt>
void run(const Block& block) {
  asm volatile("ldtilecfg %0" ::"m"(kConfig));
  with_finish(block, [&]<Act kAct, bool kBf16>() { run_blocks<kAct, kInt, kBf16>(block); });
  _tile_release();
}

// Packs rows to tiles [row / 16][k / step][16][64 bytes]. part(r, k) returns the 64 bytes of row r that begin with
// value k.
template <int kStep, class Part>
BRIM_INLINE void pack_tiles(const Rows& rows, char* out, int64_t row, Part&& part) {
  const int64_t steps = (rows.K + kStep - 1) / kStep;
  char* to = out + row / kTile * steps * kTileBytes + row % kTile * 64;
  for (int64_t k = 0; k < steps; ++k) _mm512_store_si512(to + k * kTileBytes, part(k * kStep));
}
// Packs rows begin .. end with pack(row), then zeros up to a whole tile.
template <int kStep, class Pack>
BRIM_INLINE void pack_all(const Rows& rows, char* out, Pack&& pack) {
  for (int64_t r = rows.begin; r < rows.end; ++r) pack(r);
  if (rows.end < rows.rows) return;
  for (int64_t r = rows.end; r % kTile != 0; ++r)
    pack_tiles<kStep>(rows, out, r, [](int64_t) { return _mm512_setzero_si512(); });
}

// Values of a row starting at k: whole vectors unconditionally, the last ones masked.
struct WholeF32 {
  const float* x;
  BRIM_INLINE F operator()(int64_t k) const { return load(x + k); }
};
struct WholeBf16 {
  const uint16_t* x;
  BRIM_INLINE F operator()(int64_t k) const { return load_bf16(x + k); }
};
struct AnyPart {
  const Rows& rows;
  int64_t r;
  BRIM_INLINE F operator()(int64_t k) const { return row_values(rows, r, k); }
};
template <class Fn>
BRIM_INLINE void with_row(const Rows& rows, int64_t r, int64_t step, Fn&& fn) {
  if (rows.K % step != 0)
    fn(AnyPart{rows, r});
  else if (rows.bf16)
    fn(WholeBf16{static_cast<const uint16_t*>(rows.x) + r * rows.ld});
  else
    fn(WholeF32{static_cast<const float*>(rows.x) + r * rows.ld});
}

void pack_rows_bf16(const Rows& rows, void* out, float*) {
  auto* tiles = static_cast<char*>(out);
  if (rows.bf16 && rows.K % 32 == 0) {  // copied unchanged
    pack_all<32>(rows, tiles, [&](int64_t r) {
      const uint16_t* x = static_cast<const uint16_t*>(rows.x) + r * rows.ld;
      pack_tiles<32>(rows, tiles, r, [&](int64_t k) { return _mm512_loadu_si512(x + k); });
    });
    return;
  }
  pack_all<32>(rows, tiles, [&](int64_t r) {
    with_row(rows, r, 32, [&](auto values) {
      pack_tiles<32>(rows, tiles, r,
                     [&](int64_t k) { return (__m512i)_mm512_cvtne2ps_pbh(values(k + 16), values(k)); });
    });
  });
}

// Transposes sixteen vectors of sixteen words.
BRIM_INLINE void turn_words(__m512i (&v)[16]) {
  __m512i t[16];
  BRIM_UNROLL
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
  }
  BRIM_UNROLL
  for (int i = 0; i < 16; i += 4) {  // words 4 l + j of vectors i to i + 3 in lane l of v[i + j]
    v[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    v[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    v[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    v[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  BRIM_UNROLL
  for (int j = 0; j < 4; ++j) {
    const __m512i low = _mm512_shuffle_i32x4(v[j], v[4 + j], 0x44), high = _mm512_shuffle_i32x4(v[j], v[4 + j], 0xEE),
                  low2 = _mm512_shuffle_i32x4(v[8 + j], v[12 + j], 0x44),
                  high2 = _mm512_shuffle_i32x4(v[8 + j], v[12 + j], 0xEE);
    t[j] = _mm512_shuffle_i32x4(low, low2, 0x88);
    t[4 + j] = _mm512_shuffle_i32x4(low, low2, 0xDD);
    t[8 + j] = _mm512_shuffle_i32x4(high, high2, 0x88);
    t[12 + j] = _mm512_shuffle_i32x4(high, high2, 0xDD);
  }
  BRIM_UNROLL
  for (int i = 0; i < 16; ++i) v[i] = t[i];
}

// Depths k and k + 1 of sixteen rows starting at `first`, one word each; x is [K, rows].
BRIM_INLINE __m512i turned_pair(const Rows& rows, int64_t first, int64_t k) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21,
                                         5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const F even = turned_values(rows, first, k), odd = turned_values(rows, first, k + 1);
  return _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(odd, even));
}

void pack_turned_rows_bf16(const Rows& rows, void* out) {
  const int64_t steps = (rows.K + 31) / 32;
  for (int64_t first = rows.begin; first < rows.end; first += kTile)
    for (int64_t step = 0; step < steps; ++step) {
      __m512i v[16];
      BRIM_UNROLL
      for (int i = 0; i < 16; ++i) v[i] = turned_pair(rows, first, step * 32 + 2 * i);
      turn_words(v);
      char* to = static_cast<char*>(out) + (first / kTile * steps + step) * kTileBytes;
      BRIM_UNROLL
      for (int i = 0; i < 16; ++i) _mm512_store_si512(to + i * 64, v[i]);
    }
}

// Columns have the layout of rows in a tile, with the words transposed.
void pack_weights_bf16(const Rows& rows, void* out) {
  const int64_t steps = (rows.K + 31) / 32;
  for (int64_t first = rows.begin; first < rows.end; first += kTile)
    for (int64_t step = 0; step < steps; ++step) {
      __m512i v[16];
      for (int i = 0; i < 16; ++i)
        v[i] = first + i < rows.rows ? (__m512i)_mm512_cvtne2ps_pbh(row_values(rows, first + i, step * 32 + 16),
                                                                    row_values(rows, first + i, step * 32))
                                     : _mm512_setzero_si512();
      turn_words(v);
      char* to = static_cast<char*>(out) + (first / kTile * steps + step) * kTileBytes;
      BRIM_UNROLL
      for (int i = 0; i < 16; ++i) _mm512_storeu_si512(to + i * 64, v[i]);
    }
}

void pack_turned_weights_bf16(const Rows& rows, void* out) {
  const int64_t pairs = (rows.K + 31) / 32 * 16;
  for (int64_t first = rows.begin; first < rows.end; first += kTile) {
    char* to = static_cast<char*>(out) + first / kTile * pairs * 64;
    for (int64_t i = 0; i < pairs; ++i) _mm512_storeu_si512(to + i * 64, turned_pair(rows, first, 2 * i));
  }
}

// Sixteen values at a time of four groups.
template <bool kCentred, class Values>
BRIM_INLINE RowCode code_of(const Rows& rows, int64_t r, Values&& values, float* scale) {
  if constexpr (kCentred) {
    RangeBits range[4];
    for (int64_t k = 0; k < rows.K; k += 64) {
      BRIM_UNROLL
      for (int i = 0; i < 4; ++i) range[i].add(values(k + i * 16));
    }
    range[0].add(range[1]);
    range[2].add(range[3]);
    range[0].add(range[2]);
    const RowCode code = centred_code(range[0], scale);
    rows.centre[r] = code.centre;
    return code;
  }
  I most[4] = {no_bits(), no_bits(), no_bits(), no_bits()};
  for (int64_t k = 0; k < rows.K; k += 64) {
    BRIM_UNROLL
    for (int i = 0; i < 4; ++i) most[i] = max_bits(most[i], values(k + i * 16));
  }
  const I pair = max_int(most[0], most[1]), other = max_int(most[2], most[3]);
  return {0, int8_scale(reduce_max(max_int(pair, other)), scale)};
}

template <bool kCentred>
void pack_int8(const Rows& rows, void* out, float* scale) {
  auto* tiles = static_cast<char*>(out);
  // Saturating packs work within 128-bit lanes; this restores the order of the sixteen groups of four.
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  pack_all<64>(rows, tiles, [&](int64_t r) {
    with_row(rows, r, 64, [&](auto values) {
      const RowCode code = code_of<kCentred>(rows, r, values, &scale[r]);
      const F centre = set1(code.centre), inverse = set1(code.inverse);
      pack_tiles<64>(rows, tiles, r, [&](int64_t k) {
        I q[4];
        BRIM_UNROLL
        for (int i = 0; i < 4; ++i) {
          F x = values(k + i * 16);
          if constexpr (kCentred) x = sub(x, centre);
          q[i] = _mm512_cvtps_epi32(mul(x, inverse));
        }
        return _mm512_permutexvar_epi32(
            order, _mm512_packs_epi16(_mm512_packs_epi32(q[0], q[1]), _mm512_packs_epi32(q[2], q[3])));
      });
    });
  });
}

void pack_rows_int8(const Rows& rows, void* out, float* scale) {
  rows.centre != nullptr ? pack_int8<true>(rows, out, scale) : pack_int8<false>(rows, out, scale);
}

}  // namespace

const Kernel kAmxBf16 = {.name = "amx_bf16",
                         .mr = kTile,
                         .nr = kTile,
                         .kr = 2,
                         .k_multiple = 32,
                         .element_bytes = 2,
                         .a_element_bytes = 2,
                         .pack_rows = pack_rows_bf16,
                         .run = run<false>,
                         .pack_turned_rows = pack_turned_rows_bf16,
                         .pack_weights = pack_weights_bf16,
                         .pack_turned_weights = pack_turned_weights_bf16};
const Kernel kAmxInt8 = {.name = "amx_int8",
                         .mr = kTile,
                         .nr = kTile,
                         .kr = 4,
                         .k_multiple = 64,
                         .element_bytes = 1,
                         .a_element_bytes = 1,
                         .pack_rows = pack_rows_int8,
                         .run = run<true>};

}  // namespace brim::ops::gemm
