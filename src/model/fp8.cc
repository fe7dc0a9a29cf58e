// SPDX-License-Identifier: Apache-2.0
#include "model/fp8.h"

#include <algorithm>
#include <cmath>

namespace brim::model {

// 1 sign, 4 exponent (bias 7), 3 fraction bits; largest 448, no infinity.
uint8_t to_e4m3(float x) {
  const uint8_t sign = std::signbit(x) ? 0x80 : 0;
  const float a = std::min(std::abs(x), 448.0f);
  if (a < 0x1p-10f) return sign;
  const int exponent = std::max(-6, static_cast<int>(std::floor(std::log2(a))));
  const float quantum = std::ldexp(1.0f, exponent - 3);
  const auto units = static_cast<int>(std::nearbyint(a / quantum));  // 8..16 when normal, 0..8 when subnormal
  // 16 units carry into the next exponent by themselves; 0x7E is 448.
  const int bits = (exponent + 6) * 8 + units;
  return sign | static_cast<uint8_t>(std::min(bits, 0x7E));
}

float norm_bound(std::span<const float> gamma, std::span<const float> beta) {
  const float widest = std::sqrt(static_cast<float>(std::max<size_t>(gamma.size(), 2) - 1));
  float bound = 0;
  for (size_t i = 0; i < gamma.size(); ++i) bound = std::max(bound, std::abs(gamma[i]) * widest + std::abs(beta[i]));
  return bound;
}

float product_bound(std::span<const float> w, std::span<const float> bias, std::span<const float> gamma,
                    std::span<const float> beta) {
  const size_t H = gamma.size();
  const double root = std::sqrt(static_cast<double>(H));
  double bound = 0;
  for (size_t n = 0; n < bias.size(); ++n) {
    double squares = 0, constant = bias[n];
    for (size_t i = 0; i < H; ++i) {
      const double g = static_cast<double>(w[n * H + i]) * gamma[i];
      squares += g * g;
      constant += static_cast<double>(w[n * H + i]) * beta[i];
    }
    bound = std::max(bound, std::sqrt(squares) * root + std::abs(constant));
  }
  return static_cast<float>(bound);
}

}  // namespace brim::model
