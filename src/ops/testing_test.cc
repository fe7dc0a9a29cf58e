// SPDX-License-Identifier: Apache-2.0
// Tests of the comparators: wrong pairs of every sign and kind must be rejected.
#include "ops/testing.h"

namespace brim::ops::testing {
namespace {

TEST(Comparator, RejectsWrongPairs) {
  const double inf = INFINITY, nan = NAN;
  const std::pair<double, double> bad[] = {{-500, -5},  {-5, -500},  {5, -5},    {-5, 5},     {0, 1},
                                           {1, 0},      {nan, 0},    {0, nan},   {inf, 0},    {0, inf},
                                           {inf, -inf}, {-inf, inf}, {nan, inf}, {1.0011, 1}, {-1.0011, -1}};
  for (const auto& [actual, expected] : bad) {
    EXPECT_FALSE(close({actual}, {expected}, 1e-3)) << actual << " " << expected;
    EXPECT_FALSE(close({0, actual, 0}, {0, expected, 0}, 1e-3)) << actual << " " << expected;
  }
  EXPECT_FALSE(close({1}, {1, 1}, 1e-3));
  EXPECT_FALSE(close({1}, {2}, nan));
  EXPECT_FALSE(close({1}, {2}, -1));
}

TEST(Comparator, AcceptsWithinTolerance) {
  for (const double x : {0.0, 1.0, -1.0, -500.0, double{INFINITY}, -double{INFINITY}, double{NAN}})
    EXPECT_TRUE(close({x}, {x}, 0)) << x;
  EXPECT_TRUE(close({-1.0009}, {-1}, 1e-3));
  EXPECT_TRUE(close({}, {}, 0));
}

TEST(Comparator, SameBitsDetectsOneBit) {
  HostTensor a = random_tensor(tensor::DType::f32, {3, 5}, 1),
             b = random_tensor(tensor::DType::f32, {3, 5}, 1, 1, 0, 2);
  EXPECT_TRUE(same_bits(a, b));
  b.as<float>()[b.view().ld() * 2 + 4] = std::nextafter(b.as<float>()[b.view().ld() * 2 + 4], 100.0f);
  EXPECT_FALSE(same_bits(a, b));
}

TEST(HostTensor, StartsPoisoned) {
  const HostTensor t(tensor::DType::f32, {2, 3});
  for (const double v : t.values()) EXPECT_TRUE(std::isnan(v));
}

}  // namespace
}  // namespace brim::ops::testing
