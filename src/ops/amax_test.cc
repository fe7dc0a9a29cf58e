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

TEST(Fp8Scale, FillsTheRange) {
  device::CpuStream stream(nullptr, device::best_isa());
  const HostTensor most(DType::f32, {4}), quantise(DType::f32, {4}), dequantise(DType::f32, {4});
  const double values[] = {7, 0, INFINITY, 0.25};
  for (int64_t i = 0; i < 4; ++i) most.set(i, 0, values[i]);
  fp8_scale(stream, {.amax = most, .quantise = quantise, .dequantise = dequantise, .margin = 2});
  EXPECT_EQ(quantise.values(), (std::vector<double>{32, 1, 1, 896}));
  EXPECT_FLOAT_EQ(static_cast<float>(dequantise.at(0)), 1.0f / 32);
  EXPECT_EQ(dequantise.at(1), 1);
}

}  // namespace
}  // namespace brim::ops
