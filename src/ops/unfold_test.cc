// SPDX-License-Identifier: Apache-2.0
#include "ops/unfold.h"

#include "base/error.h"
#include "ops/testing.h"

namespace brim::ops {
namespace {

using namespace brim::ops::testing;
using device::CpuStream;
using tensor::DType;

TEST(Unfold, CopiesNeighboursWithinSequences) {
  for_each_cpu_stream([](CpuStream& stream) {
    for (const int64_t width : {1, 3, 5})
      for (const auto& lengths : ragged_lengths()) {
        const std::vector<int32_t> starts = starts_of(lengths);
        const int64_t T = starts.back(), C = 9;
        std::vector<int32_t> positions;
        for (const int32_t n : lengths)
          for (int32_t i = 0; i < n; ++i) positions.push_back(2 + i);
        const HostTensor x = random_tensor(DType::f32, {T, C}, 1, 1, 0, 2), at = int_tensor(positions);
        const HostTensor y(DType::f32, {T, C * width}), d_x = random_tensor(DType::f32, {T, C}, 3);
        unfold(stream, {.x = x, .positions = at, .y = y, .width = width});
        const HostTensor d_y = random_tensor(DType::f32, {T, C * width}, 2);
        std::vector<double> want = d_x.values();
        unfold_grad(stream, {.d_y = d_y, .positions = at, .d_x = d_x, .width = width});
        for (size_t b = 0; b < lengths.size(); ++b)
          for (int64_t t = starts[b]; t < starts[b + 1]; ++t)
            for (int64_t i = 0; i < width; ++i) {
              const int64_t from = t + i - width / 2;
              const bool inside = from >= starts[b] && from < starts[b + 1];
              for (int64_t c = 0; c < C; ++c) {
                ASSERT_EQ(y.at(t, c * width + i), inside ? x.at(from, c) : 0) << t << " " << i;
                if (inside) want[static_cast<size_t>(from * C + c)] += d_y.at(t, c * width + i);
              }
            }
        EXPECT_TRUE(close(d_x.values(), want, 50 * kEps32));
      }
  });
}

TEST(Unfold, RejectsEvenWidths) {
  CpuStream stream(nullptr, device::Isa::generic);
  const HostTensor x(DType::f32, {4, 3}), y(DType::f32, {4, 12}), positions = int_tensor({0, 1, 2, 3});
  EXPECT_THROW(unfold(stream, {.x = x, .positions = positions, .y = y, .width = 4}), Error);
}

}  // namespace
}  // namespace brim::ops
