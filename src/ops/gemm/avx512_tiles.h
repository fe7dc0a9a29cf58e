// SPDX-License-Identifier: Apache-2.0
// AVX-512 kernels: tiles of 8 rows by 48 columns with 24 accumulators; rows are broadcast from memory. 48 divides the
// widths of the model families (384, 768, 2304, 3072), and one step needs 11 loads for 24 products. The precisions
// differ only in the contents of four bytes: one fp32, two bf16 or four int8. Compiled twice: avx512.cc for cores with
// BF16 instructions, avx512_vnni.cc for those without.
#pragma once
#include "ops/gemm/finish.h"
#include "ops/gemm/rows.h"

namespace brim::ops::gemm {
namespace {

constexpr int kRows = 8, kVectors = 3, kPanel = kVectors * 16, kGroupBytes = kPanel * 4;

struct Fp32 {
  using Sum = __m512;
  static constexpr bool kInt = false;
  static BRIM_INLINE Sum zero() { return _mm512_setzero_ps(); }
  static BRIM_INLINE Sum multiply(__m512i a, __m512i b, Sum c) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), c);
  }
};
// Rows are unsigned here, offset by 128; 128 times the sum of a column's weights is subtracted at the end.
struct Int8 {
  using Sum = __m512i;
  static constexpr bool kInt = true;
  static BRIM_INLINE Sum zero() { return _mm512_setzero_si512(); }
  static BRIM_INLINE Sum multiply(__m512i a, __m512i b, Sum c) { return _mm512_dpbusd_epi32(c, a, b); }
};

BRIM_INLINE void keep(char* to, __m512 sums) { _mm512_store_ps(to, sums); }
BRIM_INLINE void keep(char* to, __m512i sums) { _mm512_store_si512(to, sums); }

// R rows x 16 V columns of sums into acc; rows are `stride` bytes apart, and b is a panel of `groups` groups of four
// bytes per column.
template <class Op, int R, int V>
void tile(const char* x, int64_t stride, const char* b, int64_t groups, char* acc) {
  typename Op::Sum c[R][V];
  BRIM_UNROLL
  for (int r = 0; r < R; ++r) {
    BRIM_UNROLL
    for (int v = 0; v < V; ++v) c[r][v] = Op::zero();
  }
  for (int64_t k = 0; k < groups; ++k, b += kGroupBytes, x += 4) {
    __m512i w[V];
    BRIM_UNROLL
    for (int v = 0; v < V; ++v) w[v] = _mm512_loadu_si512(b + v * 64);
    BRIM_UNROLL
    for (int r = 0; r < R; ++r) {
      int32_t four;
      std::memcpy(&four, x + r * stride, 4);
      const __m512i a = _mm512_set1_epi32(four);
      BRIM_UNROLL
      for (int v = 0; v < V; ++v) c[r][v] = Op::multiply(a, w[v], c[r][v]);
    }
  }
  BRIM_UNROLL
  for (int r = 0; r < R; ++r) {
    BRIM_UNROLL
    for (int v = 0; v < V; ++v) keep(acc + (r * kVectors + v) * 64, c[r][v]);
  }
}

using Tile = void (*)(const char*, int64_t, const char*, int64_t, char*);
template <class Op, int V>
constexpr Tile kTiles[kRows] = {tile<Op, 1, V>, tile<Op, 2, V>, tile<Op, 3, V>, tile<Op, 4, V>,
                                tile<Op, 5, V>, tile<Op, 6, V>, tile<Op, 7, V>, tile<Op, 8, V>};

template <class Op>
void run_tiles(const Block& block, int64_t stride, int64_t groups) {
  alignas(64) char acc[kRows * kPanel * 4];
  for (int64_t n = block.n_begin; n < block.n_end;) {
    const int64_t in_panel = n % kPanel;
    const int64_t cols = kPanel - in_panel < block.n_end - n ? kPanel - in_panel : block.n_end - n,
                  vectors = (cols + 15) / 16;
    const char* b = static_cast<const char*>(block.b) + n / kPanel * groups * kGroupBytes + in_panel * 4;
    const Tile* tiles = vectors == 3 ? kTiles<Op, 3> : vectors == 2 ? kTiles<Op, 2> : kTiles<Op, 1>;
    for (int64_t m = 0; m < block.m; m += kRows) {
      const int rows = static_cast<int>(block.m - m < kRows ? block.m - m : kRows);
      tiles[rows - 1](static_cast<const char*>(block.a) + m * stride, stride, b, groups, acc);
      finish_tile<Op::kInt>(block, acc, kPanel, m, n, rows, static_cast<int>(cols));
    }
    n += cols;
  }
}

void run_fp32(const Block& block) { run_tiles<Fp32>(block, block.lda * 4, block.K); }
void run_int8(const Block& block) { run_tiles<Int8>(block, round_up(block.K, 4), round_up(block.K, 4) / 4); }

// Consecutive rows, each padded to a whole group.
void pack_rows_int8(const Rows& rows, void* out, float* scale) {
  const int64_t padded = round_up(rows.K, 4);
  auto* a = static_cast<char*>(out) + rows.begin * padded;
  for (int64_t r = rows.begin; r < rows.end; ++r, a += padded) {
    const RowCode code = row_code(rows, r, &scale[r]);
    const F centre = set1(code.centre), inverse = set1(code.inverse);
    for (int64_t k = 0; k < padded; k += 16) {
      const __m512i q = _mm512_add_epi32(_mm512_cvtps_epi32(mul(sub(row_values(rows, r, k), centre), inverse)),
                                         _mm512_set1_epi32(128));
      _mm512_mask_cvtepi32_storeu_epi8(a + k, tail(static_cast<int>(padded - k < 16 ? padded - k : 16)).mask, q);
    }
  }
}

constexpr Kernel kernel(const char* name, int element_bytes, bool column_sums,
                        void (*pack_rows)(const Rows&, void*, float*), void (*run)(const Block&)) {
  const int per_group = 4 / element_bytes;
  return {.name = name,
          .mr = kRows,
          .nr = kPanel,
          .n_step = 16,
          .kr = per_group,
          .k_multiple = per_group,
          .element_bytes = element_bytes,
          .column_sums = column_sums,
          .a_element_bytes = pack_rows == nullptr ? 0 : element_bytes,
          .pack_step = 1,
          .pack_rows = pack_rows,
          .run = run};
}

}  // namespace
}  // namespace brim::ops::gemm
