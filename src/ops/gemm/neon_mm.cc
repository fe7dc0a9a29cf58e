// SPDX-License-Identifier: Apache-2.0
// bf16 kernels with bfmmla and int8 kernels with smmla: one instruction multiplies two rows by two columns, four bf16
// or eight int8 deep. A tile of 8 x 12 is 4 x 6 squares of 2 x 2, split into rows at the end.
#include "ops/gemm/neon_panels.h"

namespace brim::ops::gemm {
namespace {

constexpr int kRows = 8, kPairs = kRows / 2, kColumnPairs = kPanel / 2;

struct Bf16 {
  using Sum = float32x4_t;
  static BRIM_INLINE Sum zero() { return vdupq_n_f32(0); }
  static BRIM_INLINE Sum multiply(Sum c, uint8x16_t a, uint8x16_t b) {
    return vbfmmlaq_f32(c, vreinterpretq_bf16_u8(a), vreinterpretq_bf16_u8(b));
  }
  static BRIM_INLINE float64x2_t bits(Sum c) { return vreinterpretq_f64_f32(c); }
};
struct Int8 {
  using Sum = int32x4_t;
  static BRIM_INLINE Sum zero() { return vdupq_n_s32(0); }
  static BRIM_INLINE Sum multiply(Sum c, uint8x16_t a, uint8x16_t b) {
    return vmmlaq_s32(c, vreinterpretq_s8_u8(a), vreinterpretq_s8_u8(b));
  }
  static BRIM_INLINE float64x2_t bits(Sum c) { return vreinterpretq_f64_s32(c); }
};

// A group is eight bytes of every row and column: [group][8][8 bytes] and [group][12][8 bytes].
template <class Op>
void tile(const char* rows, const char* columns, int64_t groups, char* acc) {
  const auto* a = reinterpret_cast<const uint8_t*>(rows);
  const auto* b = reinterpret_cast<const uint8_t*>(columns);
  typename Op::Sum c[kPairs][kColumnPairs];
  BRIM_UNROLL
  for (int i = 0; i < kPairs; ++i) {
    BRIM_UNROLL
    for (int j = 0; j < kColumnPairs; ++j) c[i][j] = Op::zero();
  }
  for (int64_t k = 0; k < groups; ++k, a += kRows * 8, b += kPanel * 8) {
    __builtin_prefetch(a + 1024);
    uint8x16_t r[kPairs];
    BRIM_UNROLL
    for (int i = 0; i < kPairs; ++i) r[i] = vld1q_u8(a + i * 16);
    BRIM_UNROLL
    for (int j = 0; j < kColumnPairs; ++j) {
      const uint8x16_t w = vld1q_u8(b + j * 16);
      BRIM_UNROLL
      for (int i = 0; i < kPairs; ++i) c[i][j] = Op::multiply(c[i][j], r[i], w);
    }
  }
  auto* to = reinterpret_cast<double*>(acc);  // two columns at a time
  BRIM_UNROLL
  for (int i = 0; i < kPairs; ++i) {
    BRIM_UNROLL
    for (int j = 0; j < kColumnPairs; j += 2) {
      const float64x2_t left = Op::bits(c[i][j]), right = Op::bits(c[i][j + 1]);
      vst1q_f64(to + 2 * i * kColumnPairs + j, vtrn1q_f64(left, right));
      vst1q_f64(to + (2 * i + 1) * kColumnPairs + j, vtrn2q_f64(left, right));
    }
  }
}

void run_bf16(const Block& block) {
  const int64_t K = round_up(block.K, 4);
  run_panels<kRows, false>(block, kRows * 2 * K, kPanel * 2 * K,
                           [K](const char* a, const char* b, char* acc) { tile<Bf16>(a, b, K / 4, acc); });
}
void run_int8(const Block& block) {
  const int64_t K = round_up(block.K, 8);
  run_panels<kRows, true>(block, kRows * K, kPanel * K,
                          [K](const char* a, const char* b, char* acc) { tile<Int8>(a, b, K / 8, acc); });
}

// Four values of two rows, side by side.
BRIM_INLINE void store_pair(uint16_t* to, F even, F odd) {
  vst1q_u16(to, vreinterpretq_u16_bf16(vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(even), odd)));
}

// Panels [row / kWidth][k / 4][kWidth][4] of rows, or of columns of weights.
template <int kWidth>
BRIM_INLINE void pack_panels(const Rows& rows, void* out) {
  const int64_t padded = round_up(rows.K, 4);
  auto* panel = static_cast<uint16_t*>(out) + rows.begin * padded;
  for (int64_t first = rows.begin; first < rows.end; first += kWidth, panel += kWidth * padded) {
    int64_t k = 0;
    if (rows.bf16 && first + kWidth <= rows.rows) {  // complete panel, already rounded
      const uint16_t* x = static_cast<const uint16_t*>(rows.x) + first * rows.ld;
      for (; k + 4 <= rows.K; k += 4) {
        BRIM_UNROLL
        for (int r = 0; r < kWidth; r += 2)
          vst1q_u16(panel + k * kWidth + r * 4,
                    vcombine_u16(vld1_u16(x + r * rows.ld + k), vld1_u16(x + (r + 1) * rows.ld + k)));
      }
    } else if (first + kWidth <= rows.rows) {
      const float* x = static_cast<const float*>(rows.x) + first * rows.ld;
      for (; k + 4 <= rows.K; k += 4) {
        BRIM_UNROLL
        for (int r = 0; r < kWidth; r += 2)
          store_pair(panel + k * kWidth + r * 4, vld1q_f32(x + r * rows.ld + k), vld1q_f32(x + (r + 1) * rows.ld + k));
      }
    }
    for (; k < padded; k += 4)
      for (int r = 0; r < kWidth; r += 2)
        store_pair(panel + k * kWidth + r * 4, panel_values(rows, first + r, k), panel_values(rows, first + r + 1, k));
  }
}

// Transposes four depths of four rows.
BRIM_INLINE void store_turned(uint16_t* to, uint16x4_t a, uint16x4_t b, uint16x4_t c, uint16x4_t d) {
  const uint16x4_t none = vdup_n_u16(0);
  const auto zipped = [none](uint16x4_t even, uint16x4_t odd) {
    return vreinterpretq_u32_u16(vzip1q_u16(vcombine_u16(even, none), vcombine_u16(odd, none)));
  };
  const uint32x4_t first = zipped(a, b), second = zipped(c, d);
  vst1q_u16(to, vreinterpretq_u16_u32(vzip1q_u32(first, second)));
  vst1q_u16(to + 8, vreinterpretq_u16_u32(vzip2q_u32(first, second)));
}
BRIM_INLINE uint16x4_t rounded(F v) { return vget_low_u16(vreinterpretq_u16_bf16(vcvtq_low_bf16_f32(v))); }
BRIM_INLINE uint16x4_t rounded(const float* x) { return rounded(vld1q_f32(x)); }
BRIM_INLINE uint16x4_t rounded(const uint16_t* x) { return vld1_u16(x); }

// Packs the whole groups of four depths of a complete panel; returns the number of depths.
template <int kWidth, class Elem>
BRIM_INLINE int64_t pack_whole_turned(const Rows& rows, int64_t first, uint16_t* panel) {
  int64_t k = 0;
  for (; k + 4 <= rows.K; k += 4) {
    const Elem* x = static_cast<const Elem*>(rows.x) + k * rows.ld + first;
    BRIM_UNROLL
    for (int r = 0; r < kWidth; r += 4)
      store_turned(panel + k * kWidth + r * 4, rounded(x + r), rounded(x + rows.ld + r), rounded(x + 2 * rows.ld + r),
                   rounded(x + 3 * rows.ld + r));
  }
  return k;
}

// The same panels from x [K, rows].
template <int kWidth>
void pack_turned(const Rows& rows, void* out) {
  const int64_t padded = round_up(rows.K, 4);
  auto* panel = static_cast<uint16_t*>(out) + rows.begin * padded;
  for (int64_t first = rows.begin; first < rows.end; first += kWidth, panel += kWidth * padded) {
    int64_t k = 0;
    if (first + kWidth <= rows.rows)
      k = rows.bf16 ? pack_whole_turned<kWidth, uint16_t>(rows, first, panel)
                    : pack_whole_turned<kWidth, float>(rows, first, panel);
    for (; k < padded; k += 4)
      for (int r = 0; r < kWidth; r += 4)
        store_turned(panel + k * kWidth + r * 4, rounded(turned_values(rows, first + r, k)),
                     rounded(turned_values(rows, first + r, k + 1)), rounded(turned_values(rows, first + r, k + 2)),
                     rounded(turned_values(rows, first + r, k + 3)));
  }
}

void pack_rows_bf16(const Rows& rows, void* out, float*) { pack_panels<kRows>(rows, out); }
void pack_weights_bf16(const Rows& rows, void* out) { pack_panels<kPanel>(rows, out); }

}  // namespace

const Kernel kNeonMmBf16 = {.name = "neon_mm_bf16",
                            .mr = kRows,
                            .nr = kPanel,
                            .kr = 4,
                            .element_bytes = 2,
                            .a_element_bytes = 2,
                            .pack_step = kRows,
                            .pack_rows = pack_rows_bf16,
                            .run = run_bf16,
                            .pack_turned_rows = pack_turned<kRows>,
                            .pack_weights = pack_weights_bf16,
                            .pack_turned_weights = pack_turned<kPanel>};
const Kernel kNeonMmInt8 = {.name = "neon_mm_int8",
                            .mr = kRows,
                            .nr = kPanel,
                            .kr = 8,
                            .element_bytes = 1,
                            .a_element_bytes = 1,
                            .pack_step = kRows,
                            .pack_rows = pack_rows_int8<kRows, 8>,
                            .run = run_int8};

}  // namespace brim::ops::gemm
