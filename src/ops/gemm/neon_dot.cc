// SPDX-License-Identifier: Apache-2.0
// int8 kernel with sdot: four bytes of a row, selected by lane, times four bytes of each of four columns.
#include "ops/gemm/neon_panels.h"

namespace brim::ops::gemm {
namespace {

constexpr int kRows = 8;

// Columns [k / 4][12][4], rows [k / 4][8][4].
void tile(const char* from, const char* columns, int64_t groups, char* acc) {
  const auto* a = reinterpret_cast<const int8_t*>(from);
  const auto* b = reinterpret_cast<const int8_t*>(columns);
  int32x4_t c[kRows][3];
  BRIM_UNROLL
  for (int r = 0; r < kRows; ++r) c[r][0] = c[r][1] = c[r][2] = vdupq_n_s32(0);
  for (int64_t k = 0; k < groups; ++k, a += kRows * 4, b += kPanel * 4) {
    __builtin_prefetch(a + 1024);
    const int8x16_t a0 = vld1q_s8(a), a1 = vld1q_s8(a + 16);
    const int8x16_t w0 = vld1q_s8(b), w1 = vld1q_s8(b + 16), w2 = vld1q_s8(b + 32);
#define BRIM_ROW(r, v)                                \
  c[r][0] = vdotq_laneq_s32(c[r][0], w0, v, (r) % 4); \
  c[r][1] = vdotq_laneq_s32(c[r][1], w1, v, (r) % 4); \
  c[r][2] = vdotq_laneq_s32(c[r][2], w2, v, (r) % 4);
    BRIM_ROW(0, a0)
    BRIM_ROW(1, a0) BRIM_ROW(2, a0) BRIM_ROW(3, a0) BRIM_ROW(4, a1) BRIM_ROW(5, a1) BRIM_ROW(6, a1) BRIM_ROW(7, a1)
#undef BRIM_ROW
  }
  auto* to = reinterpret_cast<int32_t*>(acc);
  BRIM_UNROLL
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < 3; ++v) vst1q_s32(to + r * kPanel + v * 4, c[r][v]);
}

void run(const Block& block) {
  const int64_t K = round_up(block.K, 4);
  run_panels<kRows, true>(block, kRows * K, kPanel * K,
                          [K](const char* a, const char* b, char* acc) { tile(a, b, K / 4, acc); });
}

}  // namespace

const Kernel kNeonDotInt8 = {.name = "neon_dot_int8",
                             .mr = kRows,
                             .nr = kPanel,
                             .kr = 4,
                             .element_bytes = 1,
                             .a_element_bytes = 1,
                             .pack_step = kRows,
                             .pack_rows = pack_rows_int8<kRows, 4>,
                             .run = run};

}  // namespace brim::ops::gemm
