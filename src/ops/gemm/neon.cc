// SPDX-License-Identifier: Apache-2.0
// Kernels for all aarch64 machines. fp32: fmla by lane. bf16: weights are widened on load, same arithmetic with half
// the memory. int8: 16-bit products of two steps added in pairs to 32 bits, exact because rows are within ±127.
#include "ops/gemm/neon_panels.h"

namespace brim::ops::gemm {
namespace {

constexpr int kRows = 8, kInt8Rows = 4;

struct Fp32 {
  static constexpr int kBytes = 4;
  static BRIM_INLINE void columns(const char* b, F (&w)[3]) {
    const auto* p = reinterpret_cast<const float*>(b);
    w[0] = vld1q_f32(p);
    w[1] = vld1q_f32(p + 4);
    w[2] = vld1q_f32(p + 8);
  }
};
struct Bf16 {
  static constexpr int kBytes = 2;
  static BRIM_INLINE void columns(const char* b, F (&w)[3]) {
    const auto* p = reinterpret_cast<const uint16_t*>(b);
    w[0] = load_bf16(p);
    w[1] = load_bf16(p + 4);
    w[2] = load_bf16(p + 8);
  }
};

template <class Op>
void tile_float(const char* a, const char* b, int64_t K, char* acc) {
  F c[kRows][3];
  BRIM_UNROLL
  for (int r = 0; r < kRows; ++r) c[r][0] = c[r][1] = c[r][2] = vdupq_n_f32(0);
  for (int64_t k = 0; k < K; ++k, a += kRows * 4, b += kPanel * Op::kBytes) {
    __builtin_prefetch(a + 1024);
    const F a0 = vld1q_f32(reinterpret_cast<const float*>(a)), a1 = vld1q_f32(reinterpret_cast<const float*>(a) + 4);
    F w[3];
    Op::columns(b, w);
#define BRIM_ROW(r, v)                                  \
  c[r][0] = vfmaq_laneq_f32(c[r][0], w[0], v, (r) % 4); \
  c[r][1] = vfmaq_laneq_f32(c[r][1], w[1], v, (r) % 4); \
  c[r][2] = vfmaq_laneq_f32(c[r][2], w[2], v, (r) % 4);
    BRIM_ROW(0, a0)
    BRIM_ROW(1, a0) BRIM_ROW(2, a0) BRIM_ROW(3, a0) BRIM_ROW(4, a1) BRIM_ROW(5, a1) BRIM_ROW(6, a1) BRIM_ROW(7, a1)
#undef BRIM_ROW
  }
  auto* to = reinterpret_cast<float*>(acc);
  BRIM_UNROLL
  for (int r = 0; r < kRows; ++r) {
    vst1q_f32(to + r * kPanel, c[r][0]);
    vst1q_f32(to + r * kPanel + 4, c[r][1]);
    vst1q_f32(to + r * kPanel + 8, c[r][2]);
  }
}

template <class Op>
void run_float(const Block& block) {
  const int64_t K = block.K;
  run_panels<kRows, false>(block, kRows * 4 * K, kPanel * Op::kBytes * K,
                           [K](const char* a, const char* b, char* acc) { tile_float<Op>(a, b, K, acc); });
}

// Columns [k / 2][12][2], rows [k / 4][4][4].
void tile_int8(const char* a, const char* b, int64_t K, char* acc) {
  int32x4_t c[kInt8Rows][3];
  BRIM_UNROLL
  for (int r = 0; r < kInt8Rows; ++r) c[r][0] = c[r][1] = c[r][2] = vdupq_n_s32(0);
  for (int64_t k = 0; k < K; k += 4, a += kInt8Rows * 4, b += kPanel * 4) {
    const auto* pairs = reinterpret_cast<const int16_t*>(a);
    const auto* w = reinterpret_cast<const int8_t*>(b);
    BRIM_UNROLL
    for (int v = 0; v < 3; ++v) {
      const int8x8_t w0 = vld1_s8(w + v * 8), w1 = vld1_s8(w + kPanel * 2 + v * 8);
      BRIM_UNROLL
      for (int r = 0; r < kInt8Rows; ++r) {
        int16x8_t p = vmull_s8(w0, vreinterpret_s8_s16(vld1_dup_s16(pairs + r * 2)));
        p = vmlal_s8(p, w1, vreinterpret_s8_s16(vld1_dup_s16(pairs + r * 2 + 1)));
        c[r][v] = vpadalq_s16(c[r][v], p);
      }
    }
  }
  auto* to = reinterpret_cast<int32_t*>(acc);
  BRIM_UNROLL
  for (int r = 0; r < kInt8Rows; ++r)
    for (int v = 0; v < 3; ++v) vst1q_s32(to + r * kPanel + v * 4, c[r][v]);
}

void run_int8(const Block& block) {
  const int64_t K = round_up(block.K, 4);
  run_panels<kInt8Rows, true>(block, kInt8Rows * K, kPanel * K,
                              [K](const char* a, const char* b, char* acc) { tile_int8(a, b, K, acc); });
}

// Rows [row / 8][k][8] in fp32, rounded to bf16 if kRound.
template <bool kRound>
void pack_rows_float(const Rows& rows, void* out, float*) {
  auto* panel = static_cast<float*>(out) + rows.begin * rows.K;
  for (int64_t first = rows.begin; first < rows.end; first += kRows, panel += kRows * rows.K)
    for (int64_t k = 0; k < rows.K; k += 4)
      for (int half = 0; half < 2; ++half) {
        F r[4];
        for (int i = 0; i < 4; ++i) {
          r[i] = panel_values(rows, first + half * 4 + i, k);
          if constexpr (kRound) r[i] = round_to_bf16(r[i]);
        }
        const float64x2_t t0 = vreinterpretq_f64_f32(vtrn1q_f32(r[0], r[1])),
                          t1 = vreinterpretq_f64_f32(vtrn2q_f32(r[0], r[1]));
        const float64x2_t t2 = vreinterpretq_f64_f32(vtrn1q_f32(r[2], r[3])),
                          t3 = vreinterpretq_f64_f32(vtrn2q_f32(r[2], r[3]));
        const float64x2_t turned[4] = {vtrn1q_f64(t0, t2), vtrn1q_f64(t1, t3), vtrn2q_f64(t0, t2), vtrn2q_f64(t1, t3)};
        for (int i = 0; i < 4 && k + i < rows.K; ++i)
          vst1q_f32(panel + (k + i) * kRows + half * 4, vreinterpretq_f32_f64(turned[i]));
      }
}

}  // namespace

const Kernel kNeonFp32 = {.name = "neon_fp32",
                          .mr = kRows,
                          .nr = kPanel,
                          .element_bytes = 4,
                          .a_element_bytes = 4,
                          .pack_step = kRows,
                          .pack_rows = pack_rows_float<false>,
                          .run = run_float<Fp32>};
const Kernel kNeonBf16 = {.name = "neon_bf16",
                          .mr = kRows,
                          .nr = kPanel,
                          .element_bytes = 2,
                          .a_element_bytes = 4,
                          .pack_step = kRows,
                          .pack_rows = pack_rows_float<true>,
                          .run = run_float<Bf16>};
const Kernel kNeonInt8 = {.name = "neon_int8",
                          .mr = kInt8Rows,
                          .nr = kPanel,
                          .kr = 2,
                          .k_multiple = 4,
                          .element_bytes = 1,
                          .a_element_bytes = 1,
                          .pack_step = kInt8Rows,
                          .pack_rows = pack_rows_int8<kInt8Rows, 4>,
                          .run = run_int8};

}  // namespace brim::ops::gemm
