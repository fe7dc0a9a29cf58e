// SPDX-License-Identifier: Apache-2.0
// fp64 reference of glu for both backends. `eps` and `smallest` are the rounding unit and the smallest value of the
// element type.
#pragma once
#include "ops/testing.h"

namespace brim::ops::testing {

inline void check_glu(const std::vector<double>& x, const std::vector<double>& y, int64_t F, Activation activation,
                      double eps, double smallest) {
  std::vector<double> want;
  for (size_t i = 0; i < y.size(); ++i) {
    const size_t at = i / static_cast<size_t>(F) * static_cast<size_t>(2 * F) + i % static_cast<size_t>(F);
    want.push_back(activation64(activation, x[at]) * x[at + static_cast<size_t>(F)]);
  }
  // Activations are accurate to a few ulp and to the rounding of the argument of exp or erfc times its slope.
  EXPECT_TRUE(close(y, want, [&](size_t i) { return std::fabs(want[i]) * (eps + 300 * kEps32) + smallest + 1e-35; }));
}

inline void check_glu_grad(const std::vector<double>& x, const std::vector<double>& d_y, const std::vector<double>& d_x,
                           int64_t F, Activation activation, double eps, double smallest) {
  std::vector<double> want(x.size()), size(x.size());
  for (size_t i = 0; i < d_y.size(); ++i) {
    const size_t in = i / static_cast<size_t>(F) * static_cast<size_t>(2 * F) + i % static_cast<size_t>(F),
                 gate = in + static_cast<size_t>(F);
    want[in] = d_y[i] * x[gate] * slope64(activation, x[in]);
    size[in] = std::fabs(d_y[i] * x[gate]) * 2;  // the terms of a slope may cancel
    want[gate] = d_y[i] * activation64(activation, x[in]);
    size[gate] = std::fabs(want[gate]);
  }
  EXPECT_TRUE(
      close(d_x, want, [&](size_t i) { return eps * std::fabs(want[i]) + 300 * kEps32 * size[i] + smallest + 1e-35; }));
}

}  // namespace brim::ops::testing
