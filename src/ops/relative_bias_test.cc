// SPDX-License-Identifier: Apache-2.0
#include "ops/relative_bias.h"

#include "ops/testing.h"

namespace brim::ops {

using device::CpuStream;
using tensor::DType;

namespace {
using namespace brim::ops::testing;

// The published formula in double; where it gives an integer, fp32 rounds to that integer.
int bucket_by_logarithm(int64_t distance) {
  const auto away = static_cast<double>(std::abs(distance));
  const int side = distance > 0 ? 16 : 0;
  if (away < 8) return side + static_cast<int>(away);
  return side + std::min(15, 8 + static_cast<int>(std::log(away / 8) / std::log(16.0) * 8 + 1e-9));
}

TEST(RelativeBias, BucketsFollowTheLogarithm) {
  for (int64_t d = -600; d <= 600; ++d) EXPECT_EQ(relative_bucket(d), bucket_by_logarithm(d)) << d;
  EXPECT_EQ(relative_bucket(kRelativeReach), relative_bucket(10000));
  EXPECT_NE(relative_bucket(kRelativeReach), relative_bucket(kRelativeReach - 1));
}

TEST(RelativeBias, ExpandsTheTableAndSumsTheGradient) {
  CpuStream stream(nullptr, device::Isa::generic);
  const int64_t heads = 3;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const HostTensor table = random_tensor(dtype, {34, heads}, 1), bias(DType::f32, {heads, kRelativeWidth});
    relative_bias(stream, {.table = table, .bias = bias});
    const HostTensor d_bias = random_tensor(DType::f32, {heads, kRelativeWidth}, 2), d_table(DType::f32, {34, heads});
    d_table.fill(1);
    relative_bias_grad(stream, {.d_bias = d_bias, .d_table = d_table});
    std::vector<double> want(34 * heads, 1);
    for (int64_t head = 0; head < heads; ++head)
      for (int64_t i = 0; i < kRelativeWidth; ++i) {
        const int bucket = bucket_by_logarithm(i - kRelativeReach);
        EXPECT_EQ(bias.at(head, i), table.at(bucket, head));
        want[static_cast<size_t>(bucket * heads + head)] += d_bias.at(head, i);
      }
    EXPECT_TRUE(close(d_table.values(), want, 32 * kEps32));
  }
}

TEST(RelativeBias, RejectsInvalidArguments) {
  CpuStream stream(nullptr, device::Isa::generic);
  const HostTensor table(DType::f32, {16, 2}), bias(DType::f32, {2, kRelativeWidth});
  EXPECT_THROW(relative_bias(stream, {.table = table, .bias = bias}), Error);
}

}  // namespace
}  // namespace brim::ops
