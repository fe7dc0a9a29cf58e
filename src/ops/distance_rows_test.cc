// SPDX-License-Identifier: Apache-2.0
#include "ops/distance_rows.h"

#include <map>

#include "base/error.h"
#include "ops/testing.h"

namespace brim::ops {
namespace {

using namespace brim::ops::testing;
using device::CpuStream;
using tensor::DType;

// Values computed by transformers (fp32) for position_buckets 256 and max_relative_positions 512.
TEST(DistanceRows, BucketsAreThoseOfTransformers) {
  const DistanceBuckets b{.span = 256, .buckets = 256, .farthest = 512};
  const std::map<int64_t, int64_t> buckets{{0, 0},     {1, 1},     {64, 64},   {127, 127}, {128, 128}, {129, 129},
                                           {130, 130}, {137, 135}, {138, 135}, {200, 169}, {255, 192}, {256, 192},
                                           {300, 207}, {400, 233}, {509, 255}, {510, 255}, {511, 255}};
  for (const auto& [distance, bucket] : buckets) {
    EXPECT_EQ(distance_bucket(b, distance), std::min<int64_t>(511, 256 + bucket)) << distance;
    EXPECT_EQ(distance_bucket(b, -distance), 256 - bucket) << -distance;
  }
  const DistanceBuckets odd{.span = 128, .buckets = 128, .farthest = 513};  // a quotient of logarithms near an integer
  EXPECT_EQ(distance_bucket(odd, 128), 128 + 85);
  EXPECT_EQ(distance_bucket(odd, 256), 128 + 106);
}

TEST(DistanceRows, BucketsNeverDecrease) {
  for (const DistanceBuckets b : {DistanceBuckets{256, 256, 512}, {16, 16, 44}, {20, 0, 20}, {2, 2, 100}, {3, 3, 9}})
    for (int64_t d = -1100; d < 1100; ++d) {
      ASSERT_LE(distance_bucket(b, d), distance_bucket(b, d + 1)) << b.buckets << " " << d;
      ASSERT_GE(distance_bucket(b, d), 0);
      ASSERT_LT(distance_bucket(b, d), 2 * b.span);
    }
}

TEST(DistanceRows, CopiesRowsAndSumsTheirGradients) {
  for_each_cpu_stream([](CpuStream& stream) {
    for (const DistanceBuckets b : {DistanceBuckets{16, 16, 44}, {20, 0, 20}})
      for (const int64_t reach : {0, 1, 7, 43}) {
        const int64_t first = distance_bucket(b, -reach), n = distance_bucket(b, reach) - first + 1, C = 37;
        const HostTensor x = random_tensor(DType::f32, {n, C}, 1, 1, 0, 3), y(DType::f32, {2 * reach + 1, C}, 5);
        distance_rows(stream, {.x = x, .y = y, .buckets = b, .first = first});
        const HostTensor d_y = random_tensor(DType::f32, {2 * reach + 1, C}, 2), d_x(DType::f32, {n, C}, 4);
        distance_rows_grad(stream, {.d_y = d_y, .d_x = d_x, .buckets = b, .first = first});
        std::vector<double> want(static_cast<size_t>(n * C));
        for (int64_t u = 0; u <= 2 * reach; ++u)
          for (int64_t c = 0; c < C; ++c) {
            const int64_t row = distance_bucket(b, reach - u) - first;
            ASSERT_EQ(y.at(u, c), x.at(row, c)) << u << " " << c;
            want[static_cast<size_t>(row * C + c)] += d_y.at(u, c);
          }
        EXPECT_TRUE(close(d_x.values(), want, 200 * kEps32));
      }
  });
}

TEST(DistanceRows, AccumulatesRows) {
  for_each_cpu_stream([](CpuStream& stream) {
    const HostTensor x = random_tensor(DType::f32, {5, 37}, 1, 1, 0, 3), y = random_tensor(DType::f32, {5, 37}, 2);
    std::vector<double> want = y.values();
    for (size_t i = 0; i < want.size(); ++i) want[i] += x.values()[i];
    accumulate(stream, {.x = x, .y = y});
    EXPECT_TRUE(close(y.values(), want, 8 * kEps32));
  });
}

TEST(DistanceRows, RejectsMissingBuckets) {
  CpuStream stream(nullptr, device::Isa::generic);
  const HostTensor x(DType::f32, {4, 3}), y(DType::f32, {5, 3});
  EXPECT_THROW(distance_rows(stream, {.x = x, .y = y, .buckets = {20, 0, 20}, .first = 18}), Error);
}

}  // namespace
}  // namespace brim::ops
