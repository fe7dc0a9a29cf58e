// SPDX-License-Identifier: Apache-2.0
// Shared parts of the aarch64 kernels: iteration over tiles, and rows packed in panels [row / R][k / kr][R][kr]. Tiles
// are 8 rows by 12 columns with 24 of the 32 registers as accumulators; this shape reached 79 % (fmla), 67 % (bfmmla)
// and 57 % (smmla) of the register-resident peak on Neoverse V1 within a whole encoder.
#pragma once
#include <type_traits>

#include "ops/gemm/finish.h"
#include "ops/gemm/rows.h"

namespace brim::ops::gemm {
namespace {

constexpr int kPanel = 12;

constexpr F spread(float x) { return F{x, x, x, x}; }
const volatile F kGeluFastTerms[] = {spread(kGeluFast[1]), spread(kGeluFast[2]), spread(kGeluFast[3]),
                                     spread(kGeluFast[4]), spread(kGeluFast[5]), spread(kGeluFast[6]),
                                     spread(kGeluFast[7]), spread(kGeluFast[8])};
const volatile F kHalf = spread(0.5f);

// gelu_fast of n vectors interleaved: sequentially, their dependency chains fill the scheduler queue, and a vector took
// 22 cycles on Neoverse V1. fmla overwrites its addend, so each coefficient is loaded (volatile) at its use: a register
// copy would occupy one of the fmla pipes.
template <int n>
BRIM_INLINE void gelu_fast_all(F (&x)[n]) {
  F c[n], s[n], p[n];
  BRIM_UNROLL
  for (int i = 0; i < n; ++i) {
    c[i] = min(set1(4.25f), max(set1(-4.25f), x[i]));
    s[i] = mul(c[i], c[i]);
    p[i] = set1(kGeluFast[0]);
  }
  BRIM_UNROLL
  for (int k = 0; k < 8; ++k) {
    BRIM_UNROLL
    for (int i = 0; i < n; ++i) p[i] = fma(p[i], s[i], kGeluFastTerms[k]);
  }
  BRIM_UNROLL
  for (int i = 0; i < n; ++i) x[i] = mul(x[i], fma(c[i], p[i], kHalf));
}

// Rows of a tile of twelve columns in pairs, six vectors at a time, with the arithmetic of finish_vector.
template <Act kAct, bool kInt, bool kBf16>
void finish_pairs(const Block& b, const char* acc, int64_t row, int64_t col, int rows) {
  using Y = std::conditional_t<kBf16, uint16_t, float>;
  const int64_t ld_y = b.ld_y, ld_residual = b.ld_residual;
  Y* y = static_cast<Y*>(b.y) + row * ld_y + col;
  const float* residual = b.residual != nullptr ? b.residual + row * ld_residual + col : nullptr;
  const float* a_scale = kInt ? b.a_scale + row : nullptr;
  F bias[3], scale[3];
  BRIM_UNROLL
  for (int c = 0; c < 3; ++c) {
    bias[c] = b.bias != nullptr ? load(b.bias + col + c * 4) : set1(-0.0f);  // no effect when added
    if constexpr (kInt) scale[c] = load(b.b_scale + col + c * 4);
  }
  for (int r = 0; r < rows; r += 2, acc += 2 * kPanel * 4, y += 2 * ld_y) {
    F v[6];
    BRIM_UNROLL
    for (int i = 0; i < 6; ++i) {
      if constexpr (kInt) {
        v[i] =
            mul(load_int(reinterpret_cast<const int32_t*>(acc) + i * 4), mul(set1(a_scale[r + i / 3]), scale[i % 3]));
        asm("" : "+w"(v[i]));  // keeps product and bias as two roundings, as in finish_vector
        if (b.a_centre != nullptr)
          v[i] = fma(set1(b.a_centre[row + r + i / 3]), load(b.b_total + col + i % 3 * 4), v[i]);
      } else {
        v[i] = load(reinterpret_cast<const float*>(acc) + i * 4);
      }
      v[i] = add(v[i], bias[i % 3]);
    }
    if constexpr (kAct == Act::gelu_fast) {
      gelu_fast_all(v);
    } else {
      BRIM_UNROLL
      for (int i = 0; i < 6; ++i) v[i] = activate<kAct>(v[i]);
    }
    if (residual != nullptr) {
      BRIM_UNROLL
      for (int i = 0; i < 6; ++i) v[i] = add(v[i], load(residual + i / 3 * ld_residual + i % 3 * 4));
      residual += 2 * ld_residual;
    }
    BRIM_UNROLL
    for (int i = 0; i < 6; ++i) {
      Y* to = y + i / 3 * ld_y + i % 3 * 4;
      if constexpr (kBf16) {
        store_bf16(to, v[i]);
      } else {
        store(to, v[i]);
      }
    }
  }
}

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
      const int pairs = cols == kPanel ? rows & ~1 : 0;  // rows finished in pairs
      if (pairs > 0)
        with_finish(block, [&]<Act kAct, bool kBf16>() { finish_pairs<kAct, kInt, kBf16>(block, acc, m, n, pairs); });
      if (pairs < rows) finish_tile<kInt>(block, acc + pairs * kPanel * 4, kPanel, m + pairs, n, rows - pairs, cols);
    }
  }
}

// Four values of row r starting at k; zero past the end of the row and past the last row.
BRIM_INLINE F panel_values(const Rows& rows, int64_t r, int64_t k) {
  return r < rows.rows ? row_values(rows, r, k) : set1(0.0f);
}

// Bits of the largest magnitude of a row. bf16 values are compared directly, eight at a time.
BRIM_INLINE int32_t largest_bits(const Rows& rows, int64_t r) {
  int64_t k = 0;
  I most[4] = {no_bits(), no_bits(), no_bits(), no_bits()};
  if (rows.bf16) {
    const auto* x = static_cast<const uint16_t*>(rows.x) + r * rows.ld;
    uint16x8_t half[4] = {};
    for (; k + 32 <= rows.K; k += 32) {
      BRIM_UNROLL
      for (int i = 0; i < 4; ++i)
        half[i] = vmaxq_u16(half[i], vandq_u16(vld1q_u16(x + k + i * 8), vdupq_n_u16(0x7FFF)));
    }
    const uint16x8_t all = vmaxq_u16(vmaxq_u16(half[0], half[1]), vmaxq_u16(half[2], half[3]));
    most[0] = vdupq_n_s32(vmaxvq_u16(all) << 16);
  } else {
    const float* x = static_cast<const float*>(rows.x) + r * rows.ld;
    for (; k + 16 <= rows.K; k += 16) {
      BRIM_UNROLL
      for (int i = 0; i < 4; ++i) most[i] = max_bits(most[i], load(x + k + i * 4));
    }
  }
  I all = vmaxq_s32(vmaxq_s32(most[0], most[1]), vmaxq_s32(most[2], most[3]));
  for (; k < rows.K; k += kLanes) all = max_bits(all, row_values(rows, r, k));
  return reduce_max(all);
}

// Sixteen values of row r starting at k, as int8.
template <bool kCentred>
BRIM_INLINE int8x16_t sixteen(const Rows& rows, int64_t r, int64_t k, F centre, F inverse) {
  const int64_t at = r * rows.ld + k;
  int16x8_t q[4];
  BRIM_UNROLL
  for (int i = 0; i < 4; ++i) {
    F x = rows.bf16 ? load_bf16(static_cast<const uint16_t*>(rows.x) + at + i * 4)
                    : load(static_cast<const float*>(rows.x) + at + i * 4);
    if constexpr (kCentred) x = sub(x, centre);
    q[i] = vreinterpretq_s16_s32(vcvtnq_s32_f32(mul(x, inverse)));
  }
  return vuzp1q_s8(vreinterpretq_s8_s16(vuzp1q_s16(q[0], q[1])), vreinterpretq_s8_s16(vuzp1q_s16(q[2], q[3])));
}

// Packs int8 rows: kr neighbours of each of kRows rows together, with K padded to a multiple of kr.
template <int kRows, int kr, bool kCentred>
void pack_int8(const Rows& rows, void* out, float* scale) {
  const int64_t padded = round_up(rows.K, kr);
  auto* panel = static_cast<int8_t*>(out) + rows.begin * padded;
  for (int64_t first = rows.begin; first < rows.end; first += kRows, panel += kRows * padded)
    for (int r = 0; r < kRows; ++r) {
      const bool there = first + r < rows.rows;
      RowCode code;
      if (there && kCentred) code = row_code(rows, first + r, &scale[first + r]);
      if (there && !kCentred) code.inverse = int8_scale(largest_bits(rows, first + r), &scale[first + r]);
      const F centre = set1(code.centre), inverse = set1(code.inverse);
      int8_t* to = panel + r * kr;
      int64_t k = 0;
      for (; there && k + 16 <= rows.K; k += 16, to += 16 * kRows) {
        const int8x16_t q = sixteen<kCentred>(rows, first + r, k, centre, inverse);
        BRIM_UNROLL
        for (int i = 0; i < 16 / kr; ++i)
          std::memcpy(to + i * kr * kRows, reinterpret_cast<const char*>(&q) + i * kr, kr);
      }
      for (; k < padded; k += 4) {
        const F x = sub(panel_values(rows, first + r, k), centre);
        const int16x4_t q = vmovn_s32(vcvtnq_s32_f32(mul(x, inverse)));
        const uint32_t four = vget_lane_u32(vreinterpret_u32_s8(vmovn_s16(vcombine_s16(q, q))), 0);
        std::memcpy(panel + (k / kr * kRows + r) * kr + k % kr, &four, 4);
      }
    }
}

template <int kRows, int kr>
void pack_rows_int8(const Rows& rows, void* out, float* scale) {
  rows.centre != nullptr ? pack_int8<kRows, kr, true>(rows, out, scale) : pack_int8<kRows, kr, false>(rows, out, scale);
}

}  // namespace
}  // namespace brim::ops::gemm
