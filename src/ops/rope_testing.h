// SPDX-License-Identifier: Apache-2.0
// Test cases of rope and their fp64 reference, for both backends.
#pragma once
#include "ops/rope.h"
#include "ops/testing.h"

namespace brim::ops::testing {

struct RopeCase {
  int64_t T = 1, heads = 1, D = 64;
  float theta = 10000;
  bool back = false;
  int32_t first = 0;   // position of the first row
  int64_t unused = 0;  // elements after each row

  std::string text() const {
    return fmt::format("T {} heads {} D {} theta {} back {} first {}", T, heads, D, theta, back, first);
  }
  std::vector<int32_t> positions() const {
    std::vector<int32_t> p;
    for (int64_t t = 0; t < T; ++t) p.push_back(static_cast<int32_t>(first + t % 29));
    return p;
  }
  HostTensor input(tensor::DType type) const { return random_tensor(type, {T, heads * D}, 7, 1, 0, unused); }
  // Two roundings of an angle move it by 2 eps of its magnitude; sine and cosine, products and the sum round too. `eps`
  // is the rounding unit of the element type.
  void check(const std::vector<double>& x, const std::vector<double>& before, double eps) const {
    std::vector<double> want, tolerance;
    const std::vector<int32_t> at = positions();
    const int64_t half = D / 2, W = heads * D;
    for (int64_t t = 0; t < T; ++t)
      for (int64_t i = 0; i < W; ++i) {
        const int64_t j = i % D % half;
        const bool low = i % D < half;
        const double other = before[static_cast<size_t>(t * W + (low ? i + half : i - half))],
                     own = before[static_cast<size_t>(t * W + i)];
        const double angle = at[static_cast<size_t>(t)] * std::pow(static_cast<double>(theta), -2.0 * j / D);
        const double sine = back ? -std::sin(angle) : std::sin(angle);
        want.push_back(own * std::cos(angle) + (low ? -other : other) * sine);
        tolerance.push_back((std::fabs(own) + std::fabs(other)) * kEps32 * (4 * angle + 8) +
                            eps * 1.01 * std::fabs(want.back()) + 1e-7 * eps + 1e-30);
      }
    EXPECT_TRUE(close(x, want, [&](size_t i) { return tolerance[i]; }));
  }
};

inline std::vector<RopeCase> rope_cases() {
  return {{.T = 1, .heads = 1, .D = 2},
          {.T = 30, .heads = 3, .D = 64},
          {.T = 9, .heads = 4, .D = 32, .theta = 160000, .unused = 64},
          {.T = 17, .heads = 2, .D = 64, .theta = 160000, .back = true, .first = 8160},
          {.T = 7, .heads = 5, .D = 20, .back = true, .first = 100, .unused = 3},
          {.T = 40, .heads = 1, .D = 128, .first = 511}};
}

}  // namespace brim::ops::testing
