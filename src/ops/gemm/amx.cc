// SPDX-License-Identifier: Apache-2.0
// AMX kernels: four accumulator tiles of 16 x 16 make a block of 32 rows by 32 columns; a step of k is 32 values of bf16 or
// 64 of int8. While the tile unit multiplies one block, the vector units finish the one before (bias, activation, store):
// a row or two of it after every step. With every operand in the first cache a step takes 69 cycles (64 is the unit's own
// time); 32 columns of K = 768 fill that cache in bf16, rows then arrive from the second at about 40 bytes a cycle. Cutting K
// so that a panel fits twice did not pay: sums then travel through memory (-8 % at K = 768). fp32 has no tile arithmetic and runs on the AVX-512 kernel.
#include "ops/gemm/finish.h"
#include "ops/gemm/rows.h"

namespace brim::gemm {
namespace {

constexpr int kTile = 16, kBlock = 32;      // rows or columns of a tile, of a block
constexpr int kTileBytes = kTile * 64;      // packed rows: whole tiles, one after the other along k
constexpr int kPanelStride = 2 * 64;        // packed columns: a tile's row is half of a panel's 32 columns

alignas(64) const struct TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
} kConfig;

// Tile registers: 0..3 sums, row-major over the block; 4, 5 rows; 6, 7 columns.
template <bool kInt>
BRIM_INLINE void multiply_00() { if constexpr (kInt) _tile_dpbssd(0, 4, 6); else _tile_dpbf16ps(0, 4, 6); }
template <bool kInt>
BRIM_INLINE void multiply_01() { if constexpr (kInt) _tile_dpbssd(1, 4, 7); else _tile_dpbf16ps(1, 4, 7); }
template <bool kInt>
BRIM_INLINE void multiply_10() { if constexpr (kInt) _tile_dpbssd(2, 5, 6); else _tile_dpbf16ps(2, 5, 6); }
template <bool kInt>
BRIM_INLINE void multiply_11() { if constexpr (kInt) _tile_dpbssd(3, 5, 7); else _tile_dpbf16ps(3, 5, 7); }

// Sums of a block that wait to be finished, row by row.
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
      for (; c + kLanes <= cols; c += kLanes) finish_vector<kAct, kInt, kBf16>(b, at + c * 4, row + next, col + c, scale);
      if (c < cols) finish_vector<kAct, kInt, kBf16>(b, at + c * 4, row + next, col + c, scale, tail(cols - c));
    }
  }
};

// One step of k for a block of one or two tiles each way. Rows are loaded as a stream (they come from the second-level
// cache and are not needed again before the next panel), so that the panel of columns stays in the first.
template <bool kInt, bool kTwoRows, bool kTwoColumns>
BRIM_INLINE void multiply_step(const char* a, int64_t row_panel, const char* w) {
  _tile_loadd(6, w, kPanelStride);
  _tile_stream_loadd(4, a, 64);
  multiply_00<kInt>();
  if constexpr (kTwoRows) {
    _tile_stream_loadd(5, a + row_panel, 64);
    multiply_10<kInt>();
  }
  if constexpr (kTwoColumns) {
    _tile_loadd(7, w + 64, kPanelStride);
    multiply_01<kInt>();
  }
  if constexpr (kTwoRows && kTwoColumns) multiply_11<kInt>();
}

template <Act kAct, bool kInt, bool kBf16>
void run_blocks(const Block& b) {
  constexpr int kStep = kInt ? 64 : 32;
  const int64_t steps = (b.K + kStep - 1) / kStep;
  const int64_t row_panel = steps * kTileBytes, column_panel = steps * 2 * kTileBytes;
  const int64_t last_panel = (b.N - 1) / kBlock;
  const int row_blocks = static_cast<int>((b.m + kBlock - 1) / kBlock);
  const int lines = (2 * kTileBytes / 64 + row_blocks - 1) / row_blocks;  // of the next panel, fetched at every step
  const int share = steps > 0 ? static_cast<int>((kBlock + steps - 1) / steps) : 0;
  alignas(64) char buffers[2][kBlock * kBlock * 4];
  int buffer = 0;
  Pending<kAct, kInt, kBf16> pending;

  for (int64_t n = b.n_begin; n < b.n_end;) {
    const int64_t panel = n / kBlock, in_panel = n % kBlock;
    const int cols = static_cast<int>(kBlock - in_panel < b.n_end - n ? kBlock - in_panel : b.n_end - n);
    const bool two_columns = cols > kTile;
    const char* columns = static_cast<const char*>(b.b) + panel * column_panel;
    const char* ahead = columns + (panel < last_panel ? column_panel : 0);
    for (int64_t m = 0; m < b.m; m += kBlock) {
      const int rows = static_cast<int>(b.m - m < kBlock ? b.m - m : kBlock);
      const bool two_rows = rows > kTile;
      const char* a = static_cast<const char*>(b.a) + m / kTile * row_panel;
      const char* w = columns + in_panel * 4;
      char* out = buffers[buffer];
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
      const auto multiply = [&]<bool kTwoRows, bool kTwoColumns>() {
        for (int64_t k = 0; k < steps; ++k, a += kTileBytes, w += 2 * kTileBytes, ahead += lines * 64) {
          for (int i = 0; i < lines; ++i) _mm_prefetch(ahead + i * 64, _MM_HINT_T1);
          multiply_step<kInt, kTwoRows, kTwoColumns>(a, row_panel, w);
          pending.some(b, share);
        }
      };
      if (two_rows) two_columns ? multiply.template operator()<true, true>() : multiply.template operator()<true, false>();
      else two_columns ? multiply.template operator()<false, true>() : multiply.template operator()<false, false>();
      pending.some(b, kBlock);
      _tile_stored(0, out, kBlock * 4);
      if (two_columns) _tile_stored(1, out + 64, kBlock * 4);
      if (two_rows) _tile_stored(2, out + kTile * kBlock * 4, kBlock * 4);
      if (two_rows && two_columns) _tile_stored(3, out + kTile * kBlock * 4 + 64, kBlock * 4);
      pending = {out, m, n, rows, 0, cols};
      buffer ^= 1;
    }
    n += cols;
  }
  pending.some(b, kBlock);
}

template <bool kInt>
void run(const Block& block) {
  asm volatile("ldtilecfg %0" ::"m"(kConfig));
  with_finish(block, [&]<Act kAct, bool kBf16>() { run_blocks<kAct, kInt, kBf16>(block); });
  _tile_release();
}

// Tiles [row / 16][k / 32][16][32]; rows past the last are zero.
void pack_rows_bf16(const Rows& rows, void* out, float*) {
  const int64_t steps = (rows.K + 31) / 32;
  for (int64_t panel = 0; panel * kTile < rows.rows; ++panel) {
    char* to = static_cast<char*>(out) + panel * steps * kTileBytes;
    for (int r = 0; r < kTile; ++r) {
      const int64_t row = panel * kTile + r;
      const bool inside = row < rows.rows;
      for (int64_t k = 0; k < steps; ++k) {
        const F low = inside ? row_values(rows, row, k * 32) : set1(0.0f), high = inside ? row_values(rows, row, k * 32 + 16) : set1(0.0f);
        _mm512_store_si512(to + k * kTileBytes + r * 64, (__m512i)_mm512_cvtne2ps_pbh(high, low));
      }
    }
  }
}

// Tiles [row / 16][k / 64][16][64], each row scaled so that its largest value is 127.
void pack_rows_int8(const Rows& rows, void* out, float* scale) {
  const int64_t steps = (rows.K + 63) / 64;
  for (int64_t panel = 0; panel * kTile < rows.rows; ++panel) {
    char* to = static_cast<char*>(out) + panel * steps * kTileBytes;
    for (int r = 0; r < kTile; ++r) {
      const int64_t row = panel * kTile + r;
      if (row >= rows.rows) {
        for (int64_t k = 0; k < steps; ++k) _mm512_store_si512(to + k * kTileBytes + r * 64, _mm512_setzero_si512());
        continue;
      }
      const F inverse = set1(quantised_row(rows, row, &scale[row]));
      for (int64_t k = 0; k < steps; ++k)
        for (int part = 0; part < 4; ++part) {
          const __m512i q = _mm512_cvtps_epi32(mul(row_values(rows, row, k * 64 + part * 16), inverse));
          _mm_store_si128(reinterpret_cast<__m128i*>(to + k * kTileBytes + r * 64 + part * 16), _mm512_cvtsepi32_epi8(q));
        }
    }
  }
}

}  // namespace

const Kernel kAmxBf16 = {.name = "amx_bf16", .mr = kTile, .nr = kBlock, .n_step = kTile, .kr = 2, .k_multiple = 32, .element_bytes = 2,
                         .column_sums = false, .a_element_bytes = 2, .pack_rows = pack_rows_bf16, .run = run<false>};
const Kernel kAmxInt8 = {.name = "amx_int8", .mr = kTile, .nr = kBlock, .n_step = kTile, .kr = 4, .k_multiple = 64, .element_bytes = 1,
                         .column_sums = false, .a_element_bytes = 1, .pack_rows = pack_rows_int8, .run = run<true>};

}  // namespace brim::gemm
