// SPDX-License-Identifier: Apache-2.0
#include "ops/rope.h"

#include "ops/rope_testing.h"
#include "ops/testing.h"

namespace brim::ops {
namespace {

using namespace brim::ops::testing;
using device::CpuStream;
using tensor::DType;

TEST(Rope, MatchesFp64) {
  for_each_cpu_stream([](CpuStream& stream) {
    for (const DType type : {DType::f32, DType::bf16})
      for (const RopeCase& c : rope_cases()) {
        SCOPED_TRACE(c.text());
        const HostTensor x = c.input(type), positions = int_tensor(c.positions());
        const std::vector<double> before = x.values();
        RopeArgs args{.x = x, .positions = positions, .head_size = c.D, .theta = c.theta, .back = c.back};
        rope(stream, args);
        c.check(x.values(), before, type == DType::f32 ? kEps32 : kEpsBf16);
      }
  });
}

// Rotating forwards and backwards restores the input.
TEST(Rope, BackwardRotationInvertsForward) {
  CpuStream stream(nullptr, device::best_isa());
  const RopeCase c{.T = 5, .heads = 2, .D = 32};
  const HostTensor x = c.input(DType::f32), positions = int_tensor(c.positions());
  const std::vector<double> before = x.values();
  RopeArgs args{.x = x, .positions = positions, .head_size = c.D};
  rope(stream, args);
  EXPECT_FALSE(close(x.values(), before, 0.1));
  args.back = true;
  rope(stream, args);
  EXPECT_TRUE(close(x.values(), before, 1e-5));
}

TEST(Rope, RejectsOddHeadSizes) {
  CpuStream stream(nullptr, device::best_isa());
  const HostTensor x(DType::f32, {2, 14}), positions = int_tensor(std::vector<int32_t>{0, 1});
  EXPECT_THROW(rope(stream, {.x = x, .positions = positions, .head_size = 7}), Error);
}

}  // namespace
}  // namespace brim::ops
