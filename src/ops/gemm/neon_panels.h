// SPDX-License-Identifier: Apache-2.0
// What the aarch64 kernels share: the walk over tiles, and rows packed in panels [row / R][k / kr][R][kr]. Tiles are 8
// rows by 12 columns, 24 of the 32 registers accumulating; this shape reached 79 % (fmla), 67 % (bfmmla) and 57 %
// (smmla) of the register-resident peak on Neoverse V1 with a whole encoder around it.
#pragma once
#include "ops/gemm/finish.h"
#include "ops/gemm/rows.h"

namespace brim::ops::gemm {
namespace {

constexpr int kPanel = 12;

// tile(a, b, acc) multiplies one panel of kRows rows by one of columns into acc[kRows][12].
template <int kRows, bool kInt, class Tile>
BRIM_INLINE void run_panels(const Block& block, int64_t a_panel_bytes, int64_t b_panel_bytes, Tile&& tile) {
  alignas(16) char acc[kRows * kPanel * 4];
  for (int64_t n = block.n_begin; n < block.n_end; n += kPanel) {
    const char* b = static_cast<const char*>(block.b) + n / kPanel * b_panel_bytes;
    const int cols = static_cast<int>(block.n_end - n < kPanel ? block.n_end - n : kPanel);
    for (int64_t m = 0; m < block.m; m += kRows) {
      const int rows = static_cast<int>(block.m - m < kRows ? block.m - m : kRows);
      tile(static_cast<const char*>(block.a) + m / kRows * a_panel_bytes, b, acc);
      finish_tile<kInt>(block, acc, kPanel, m, n, rows, cols);
    }
  }
}

// Four values of row r from k on; zero past the row's end and past the last row.
BRIM_INLINE F panel_values(const Rows& rows, int64_t r, int64_t k) {
  return r < rows.rows ? row_values(rows, r, k) : set1(0.0f);
}

// int8 rows: kr neighbours of each of kRows rows together, K padded to a multiple of kStep.
template <int kRows, int kr, int kStep>
void pack_rows_int8(const Rows& rows, void* out, float* scale) {
  const int64_t padded = round_up(rows.K, kStep);
  auto* panel = static_cast<int8_t*>(out) + rows.begin * padded;
  for (int64_t first = rows.begin; first < rows.end; first += kRows, panel += kRows * padded)
    for (int r = 0; r < kRows; ++r) {
      const F inverse = set1(first + r < rows.rows ? quantised_row(rows, first + r, &scale[first + r]) : 0.0f);
      for (int64_t k = 0; k < padded; k += 4) {
        const int16x4_t q = vmovn_s32(vcvtnq_s32_f32(mul(panel_values(rows, first + r, k), inverse)));
        const uint32_t four = vget_lane_u32(vreinterpret_u32_s8(vmovn_s16(vcombine_s16(q, q))), 0);
        std::memcpy(panel + (k / kr * kRows + r) * kr + k % kr, &four, 4);
      }
    }
}

}  // namespace
}  // namespace brim::ops::gemm
