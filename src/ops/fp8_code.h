// SPDX-License-Identifier: Apache-2.0
// e4m3 on the host: 1 sign, 4 exponent (bias 7), 3 fraction bits; maximum 448, no infinity.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace brim::ops {

constexpr float kFp8Largest = 448;

// Rounds to nearest even; saturates at 448; NaN stays NaN.
inline uint8_t to_e4m3(float x) {
  const uint8_t sign = std::signbit(x) ? 0x80 : 0;
  if (std::isnan(x)) return sign | 0x7F;
  const float a = std::min(std::abs(x), kFp8Largest);
  if (a < 0x1p-10f) return sign;
  const int exponent = std::max(-6, static_cast<int>(std::floor(std::log2(a))));
  const float quantum = std::ldexp(1.0f, exponent - 3);
  const auto units = static_cast<int>(std::nearbyint(a / quantum));  // 8..16 if normal, 0..8 if subnormal
  // 16 units carry into the next exponent automatically; 0x7E is 448.
  const int bits = (exponent + 6) * 8 + units;
  return sign | static_cast<uint8_t>(std::min(bits, 0x7E));
}

inline double from_e4m3(uint8_t bits) {
  const int exponent = bits >> 3 & 15, fraction = bits & 7;
  if (exponent == 15 && fraction == 7) return std::numeric_limits<double>::quiet_NaN();
  const double size = exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
  return (bits & 0x80) != 0 ? -size : size;
}

}  // namespace brim::ops
