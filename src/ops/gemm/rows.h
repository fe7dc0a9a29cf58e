// SPDX-License-Identifier: Apache-2.0
// Reads rows of x for pack_rows: one vector of values of any supported type, and the int8 scale of a row.
#pragma once
#include "ops/gemm/gemm.h"
#include "ops/gemm/vec.h"

namespace brim::ops::gemm {
namespace {

// kLanes values of row r starting at k, zero past its end.
BRIM_INLINE F row_values(const Rows& rows, int64_t r, int64_t k) {
  const int64_t i = r * rows.ld + k, left = rows.K - k;
  if (left >= kLanes)
    return rows.bf16 ? load_bf16(static_cast<const uint16_t*>(rows.x) + i)
                     : load(static_cast<const float*>(rows.x) + i);
  if (left <= 0) return set1(0.0f);
  const Tail t = tail(static_cast<int>(left));
  return rows.bf16 ? load_bf16(static_cast<const uint16_t*>(rows.x) + i, t)
                   : load(static_cast<const float*>(rows.x) + i, t);
}

// kLanes values of depth k starting at row r, for x [K, rows]; zero past the last row and past K.
BRIM_INLINE F turned_values(const Rows& rows, int64_t r, int64_t k) {
  const int64_t left = rows.rows - r;
  if (left <= 0 || k >= rows.K) return set1(0.0f);
  const int64_t i = k * rows.ld + r;
  if (rows.bf16) {
    const uint16_t* at = static_cast<const uint16_t*>(rows.x) + i;
    return left >= kLanes ? load_bf16(at) : load_bf16(at, tail(static_cast<int>(left)));
  }
  const float* at = static_cast<const float*>(rows.x) + i;
  return left >= kLanes ? load(at) : load(at, tail(static_cast<int>(left)));
}

// Scale of a row from the bits of its largest magnitude, which maps to 127, and the inverse scale. A row that is zero
// or contains NaN or infinity becomes zeros times a scale that preserves this.
inline float int8_scale(int32_t bits, float* scale) {
  float largest;
  std::memcpy(&largest, &bits, sizeof largest);
  *scale = largest / 127;
  return bits > 0 && bits < 0x7F800000 ? 127 / largest : 0.0f;
}

// int8 form of a row: q = (x - centre) * inverse.
struct RowCode {
  float centre = 0, inverse = 0;
};

// Bits of the largest positive value and of the magnitude of the most negative one, each 0 if there is none. NaN is
// above all in one of them.
struct RangeBits {
  I high = no_bits(), low = no_bits();
  BRIM_INLINE void add(F x) {
    high = max_int(high, bits_of(x));
    low = max_int(low, flip_sign(bits_of(x)));
  }
  BRIM_INLINE void add(const RangeBits& other) {
    high = max_int(high, other.high);
    low = max_int(low, other.low);
  }
};

// Code of a row whose range, which always contains 0, is mapped to -127 .. 127. Rows with NaN or infinity become zeros
// times a scale that preserves this.
inline RowCode centred_code(const RangeBits& range, float* scale) {
  const int32_t high_bits = reduce_max(range.high), low_bits = reduce_max(range.low);
  const int32_t most = high_bits > low_bits ? high_bits : low_bits;
  if (most >= 0x7F800000) return {0, int8_scale(most, scale)};
  float high, low;
  std::memcpy(&high, &high_bits, sizeof high);
  std::memcpy(&low, &low_bits, sizeof low);
  const float half = 0.5f * high + 0.5f * low;
  *scale = half / 127;
  return {0.5f * high - 0.5f * low, half > kLeastRange ? 127 / half : 0.0f};
}

inline RowCode row_code(const Rows& rows, int64_t r, float* scale) {
  if (rows.centre == nullptr) {
    I most = no_bits();
    for (int64_t k = 0; k < rows.K; k += kLanes) most = max_bits(most, row_values(rows, r, k));
    return {0, int8_scale(reduce_max(most), scale)};
  }
  RangeBits range;
  for (int64_t k = 0; k < rows.K; k += kLanes) range.add(row_values(rows, r, k));
  const RowCode code = centred_code(range, scale);
  rows.centre[r] = code.centre;
  return code;
}

}  // namespace
}  // namespace brim::ops::gemm
