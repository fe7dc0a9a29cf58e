// SPDX-License-Identifier: Apache-2.0
#include "model/fp8.h"

#include <algorithm>
#include <cmath>

namespace brim::model {

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
