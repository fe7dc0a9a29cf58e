// SPDX-License-Identifier: Apache-2.0
#include "ops/amax.h"

#include "ops/testing.h"

namespace brim::ops {

using tensor::DType;

namespace {
using namespace brim::ops::testing;

TEST(Amax, MergesTheLargestMagnitude) {
  device::CpuStream stream(nullptr, device::best_isa());
  const HostTensor x = random_tensor(DType::f32, {7, 33}, 1, 1, 0, 3), most(DType::f32, {1});
  most.fill(0);
  x.set(5, 32, -9);
  amax(stream, {.x = x, .amax = most});
  EXPECT_EQ(most.at(0), 9);
  most.fill(20);
  amax(stream, {.x = x, .amax = most});
  EXPECT_EQ(most.at(0), 20);
  x.set(0, 0, std::nan(""));
  amax(stream, {.x = x, .amax = most});
  EXPECT_TRUE(std::isinf(most.at(0)));
}

TEST(Fp8Scale, UsesTheFullRange) {
  device::CpuStream stream(nullptr, device::best_isa());
  const HostTensor most(DType::f32, {4}), scale(DType::f32, {4}), inverse(DType::f32, {4, 1});
  const double values[] = {7, 0, INFINITY, 0.25};
  for (int64_t i = 0; i < 4; ++i) most.set(i, 0, values[i]);
  fp8_scale(stream, {.amax = most, .scale = scale, .inverse = inverse, .margin = 2});
  EXPECT_EQ(scale.values(), (std::vector<double>{32, 1, 1, 896}));
  EXPECT_EQ(inverse.values(), (std::vector<double>{1.0f / 32, 1, 1, 1.0f / 896}));
}

// Two activations and two gradients over more steps than the history holds: scales follow the maximum of the last
// sixteen, gradient scales are independent of the samples per step, and a non-finite step is ignored.
TEST(Fp8Scale, FollowsTheMaximumOfTheHistory) {
  device::CpuStream stream(nullptr, device::best_isa());
  const HostTensor amax(DType::f32, {4}), history(DType::f32, {4, kFp8History}), scale(DType::f32, {4});
  history.fill(0);
  const auto scales = [&](float unit) {
    fp8_delayed_scale(stream, {.history = history, .scale = scale, .first_gradient = 2, .unit = unit, .margin = 2});
    return scale.values();
  };
  EXPECT_EQ(scales(0.5f), (std::vector<double>{1, 1, 448, 448})) << "gradients as if their largest were the unit";
  const auto step = [&](std::vector<double> most, float unit) {
    for (int64_t i = 0; i < 4; ++i) amax.set(i, 0, most[static_cast<size_t>(i)]);
    fp8_remember(stream, {.amax = amax, .history = history, .first_gradient = 2, .unit = unit});
    EXPECT_EQ(amax.values(), (std::vector<double>{0, 0, 0, 0}));
  };
  step({14, 7, 7, 0}, 0.5f);
  EXPECT_EQ(scales(0.5f), (std::vector<double>{16, 32, 32, 448}));
  EXPECT_EQ(scales(0.125f), (std::vector<double>{16, 32, 128, 1792})) << "fewer samples: larger gradients of each";
  step({INFINITY, 28, std::nan(""), 3.5}, 1);
  EXPECT_EQ(scales(1), (std::vector<double>{16, 8, 16, 64}));
  for (int i = 0; i < kFp8History - 1; ++i) step({1, 1, 1, 1}, 1);
  EXPECT_EQ(scales(1), (std::vector<double>{16, 8, 16, 64}));
  step({1, 1, 1, 1}, 1);
  EXPECT_EQ(scales(1), (std::vector<double>{224, 224, 224, 224}));
}

TEST(Fp8Code, RoundTripsEveryCode) {
  for (int code = 0; code < 256; ++code) {
    if ((code & 0x7F) == 0x7F) continue;  // NaN
    EXPECT_EQ(to_e4m3(static_cast<float>(from_e4m3(static_cast<uint8_t>(code)))), code);
  }
}

TEST(Fp8Code, RoundsToNearestEven) {
  std::mt19937 generator(1);
  std::uniform_real_distribution<float> exponent(-12, 9);
  for (int i = 0; i < 20000; ++i) {
    const float x = std::exp2(exponent(generator)) * ((i & 1) != 0 ? -1.0f : 1.0f);
    const double got = from_e4m3(to_e4m3(x));
    double best = 1e9;
    for (int code = 0; code < 256; ++code)
      if ((code & 0x7F) != 0x7F)
        best = std::min(best, std::abs(from_e4m3(static_cast<uint8_t>(code)) - static_cast<double>(x)));
    EXPECT_DOUBLE_EQ(std::abs(got - static_cast<double>(x)), best) << x;
  }
  EXPECT_EQ(from_e4m3(to_e4m3(17)), 16);  // between 16 and 18: even fraction
  EXPECT_EQ(from_e4m3(to_e4m3(19)), 20);
  EXPECT_EQ(from_e4m3(to_e4m3(1e6f)), 448);
  EXPECT_EQ(from_e4m3(to_e4m3(0x1p-10f)), 0);  // half the smallest: ties to even, which is zero
}

}  // namespace
}  // namespace brim::ops
