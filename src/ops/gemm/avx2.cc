// SPDX-License-Identifier: Apache-2.0
// AVX2 kernels: tiles of 6 rows by 16 columns with 12 of the 16 registers as accumulators; rows are broadcast from
// memory. There is no bf16 or exact int8 dot product: bf16 weights are widened to fp32 (half the memory, same
// arithmetic), int8 to int16 for vpmaddwd, whose sums of two cannot overflow (unlike vpmaddubsw).
#include "ops/gemm/finish.h"
#include "ops/gemm/rows.h"

namespace brim::ops::gemm {
namespace {

constexpr int kRows = 6, kPanel = 16;

struct Fp32 {
  using Sum = __m256;
  static constexpr bool kInt = false;
  static constexpr int kStep = 1, kRowBytes = 4,
                       kColumnBytes = 4;  // per step: k values, bytes of a row, bytes of a column
  static BRIM_INLINE Sum zero() { return _mm256_setzero_ps(); }
  template <int R>
  static BRIM_INLINE void step(const char* x, int64_t stride, const char* b, Sum (&c)[R][2]) {
    const __m256 w0 = load(reinterpret_cast<const float*>(b)), w1 = load(reinterpret_cast<const float*>(b) + 8);
    BRIM_UNROLL
    for (int r = 0; r < R; ++r) {
      const __m256 a = _mm256_broadcast_ss(reinterpret_cast<const float*>(x + r * stride));
      c[r][0] = _mm256_fmadd_ps(a, w0, c[r][0]);
      c[r][1] = _mm256_fmadd_ps(a, w1, c[r][1]);
    }
  }
};

// Rows are fp32 values rounded to bf16; columns hold two neighbours in four bytes, the even one in the low half.
struct Bf16 {
  using Sum = __m256;
  static constexpr bool kInt = false;
  static constexpr int kStep = 2, kRowBytes = 8, kColumnBytes = 4;
  static BRIM_INLINE Sum zero() { return _mm256_setzero_ps(); }
  template <int R>
  static BRIM_INLINE void step(const char* x, int64_t stride, const char* b, Sum (&c)[R][2]) {
    const I high = _mm256_set1_epi32(static_cast<int>(0xFFFF0000u));
    BRIM_UNROLL
    for (int odd = 0; odd < 2; ++odd) {
      const I b0 = load_i(b), b1 = load_i(b + 32);
      const __m256 w0 = _mm256_castsi256_ps(odd ? _mm256_and_si256(b0, high) : _mm256_slli_epi32(b0, 16));
      const __m256 w1 = _mm256_castsi256_ps(odd ? _mm256_and_si256(b1, high) : _mm256_slli_epi32(b1, 16));
      BRIM_UNROLL
      for (int r = 0; r < R; ++r) {
        const __m256 a = _mm256_broadcast_ss(reinterpret_cast<const float*>(x + r * stride) + odd);
        c[r][0] = _mm256_fmadd_ps(a, w0, c[r][0]);
        c[r][1] = _mm256_fmadd_ps(a, w1, c[r][1]);
      }
    }
  }
};

// Rows are int16, two at a time; columns are int8, widened on load.
struct Int8 {
  using Sum = __m256i;
  static constexpr bool kInt = true;
  static constexpr int kStep = 2, kRowBytes = 4, kColumnBytes = 2;
  static BRIM_INLINE Sum zero() { return _mm256_setzero_si256(); }
  template <int R>
  static BRIM_INLINE void step(const char* x, int64_t stride, const char* b, Sum (&c)[R][2]) {
    const I w0 = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(b)));
    const I w1 = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(b) + 1));
    BRIM_UNROLL
    for (int r = 0; r < R; ++r) {
      int32_t two;
      std::memcpy(&two, x + r * stride, 4);
      const I a = _mm256_set1_epi32(two);
      c[r][0] = _mm256_add_epi32(c[r][0], _mm256_madd_epi16(a, w0));
      c[r][1] = _mm256_add_epi32(c[r][1], _mm256_madd_epi16(a, w1));
    }
  }
};

BRIM_INLINE void keep(char* to, __m256 sums) { _mm256_store_ps(reinterpret_cast<float*>(to), sums); }
BRIM_INLINE void keep(char* to, __m256i sums) { _mm256_store_si256(reinterpret_cast<__m256i*>(to), sums); }

// R rows x 16 columns of sums into acc; rows are `stride` bytes apart.
template <class Op, int R>
void tile(const char* x, int64_t stride, const char* b, int64_t steps, char* acc) {
  typename Op::Sum c[R][2];
  BRIM_UNROLL
  for (int r = 0; r < R; ++r) c[r][0] = c[r][1] = Op::zero();
  for (int64_t k = 0; k < steps; ++k, x += Op::kRowBytes, b += kPanel * Op::kColumnBytes)
    Op::template step<R>(x, stride, b, c);
  BRIM_UNROLL
  for (int r = 0; r < R; ++r) {
    keep(acc + r * 64, c[r][0]);
    keep(acc + r * 64 + 32, c[r][1]);
  }
}

using Tile = void (*)(const char*, int64_t, const char*, int64_t, char*);
template <class Op>
constexpr Tile kTiles[kRows] = {tile<Op, 1>, tile<Op, 2>, tile<Op, 3>, tile<Op, 4>, tile<Op, 5>, tile<Op, 6>};

template <class Op>
void run(const Block& block) {
  alignas(32) char acc[kRows * kPanel * 4];
  const int64_t steps = (block.K + Op::kStep - 1) / Op::kStep;
  const int64_t stride = block.lda > 0 ? block.lda * 4 : steps * Op::kRowBytes;
  for (int64_t n = block.n_begin; n < block.n_end; n += kPanel) {
    const char* b = static_cast<const char*>(block.b) + n * steps * Op::kColumnBytes;
    const int cols = static_cast<int>(block.n_end - n < kPanel ? block.n_end - n : kPanel);
    for (int64_t m = 0; m < block.m; m += kRows) {
      const int rows = static_cast<int>(block.m - m < kRows ? block.m - m : kRows);
      kTiles<Op>[rows - 1](static_cast<const char*>(block.a) + m * stride, stride, b, steps, acc);
      finish_tile<Op::kInt>(block, acc, kPanel, m, n, rows, cols);
    }
  }
}

// Consecutive rows, each padded to an even length.
void pack_rows_bf16(const Rows& rows, void* out, float*) {
  const int64_t padded = round_up(rows.K, 2);
  auto* a = static_cast<float*>(out) + rows.begin * padded;
  for (int64_t r = rows.begin; r < rows.end; ++r, a += padded)
    for (int64_t k = 0; k < padded; k += 8)
      store(a + k, round_to_bf16(row_values(rows, r, k)), tail(static_cast<int>(padded - k < 8 ? padded - k : 8)));
}

void pack_rows_int8(const Rows& rows, void* out, float* scale) {
  const int64_t padded = round_up(rows.K, 2);
  auto* a = static_cast<int16_t*>(out) + rows.begin * padded;
  for (int64_t r = rows.begin; r < rows.end; ++r, a += padded) {
    const RowCode code = row_code(rows, r, &scale[r]);
    const F centre = set1(code.centre), inverse = set1(code.inverse);
    for (int64_t k = 0; k < padded; k += 8) {
      const I q = _mm256_cvtps_epi32(mul(sub(row_values(rows, r, k), centre), inverse));
      const __m128i words = _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packs_epi32(q, q), 0x08));
      if (padded - k >= 8)
        _mm_storeu_si128(reinterpret_cast<__m128i*>(a + k), words);
      else
        std::memcpy(a + k, &words, static_cast<size_t>(padded - k) * 2);
    }
  }
}

}  // namespace

const Kernel kAvx2Fp32 = {.name = "avx2_fp32", .mr = kRows, .nr = kPanel, .element_bytes = 4, .run = run<Fp32>};
const Kernel kAvx2Bf16 = {.name = "avx2_bf16",
                          .mr = kRows,
                          .nr = kPanel,
                          .kr = 2,
                          .element_bytes = 2,
                          .a_element_bytes = 4,
                          .pack_rows = pack_rows_bf16,
                          .run = run<Bf16>};
const Kernel kAvx2Int8 = {.name = "avx2_int8",
                          .mr = kRows,
                          .nr = kPanel,
                          .kr = 2,
                          .element_bytes = 1,
                          .a_element_bytes = 2,
                          .pack_rows = pack_rows_int8,
                          .run = run<Int8>};

}  // namespace brim::ops::gemm
