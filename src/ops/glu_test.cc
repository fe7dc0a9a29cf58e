// SPDX-License-Identifier: Apache-2.0
#include "ops/glu.h"

#include "ops/glu_testing.h"
#include "ops/testing.h"

namespace brim::ops {
namespace {

using namespace brim::ops::testing;
using device::CpuStream;
using tensor::DType;

TEST(Glu, MatchesFp64) {
  for_each_cpu_stream([](CpuStream& stream) {
    for (const DType type : {DType::f32, DType::bf16})
      for (const Activation activation : kEveryActivation)
        for (const int64_t F : {1, 7, 64, 1152}) {
          SCOPED_TRACE(::testing::Message() << dtype_name(type) << " " << static_cast<int>(activation) << " F " << F);
          const HostTensor x = random_tensor(type, {5, 2 * F}, 3, 2, 0, 2), y(type, {5, F}, 1);
          glu(stream, {.x = x, .y = y, .activation = activation});
          check_glu(x.values(), y.values(), F, activation, type == DType::f32 ? kEps32 : kEpsBf16, 1e-35);
        }
  });
}

TEST(GluGrad, MatchesFp64) {
  for_each_cpu_stream([](CpuStream& stream) {
    for (const Activation activation : kEveryActivation)
      for (const int64_t F : {1, 7, 64, 600}) {
        SCOPED_TRACE(::testing::Message() << static_cast<int>(activation) << " F " << F);
        const HostTensor x = random_tensor(DType::f32, {5, 2 * F}, 3, 2, 0, 2),
                         d_y = random_tensor(DType::f32, {5, F}, 4), d_x(DType::f32, {5, 2 * F}, 1),
                         y(DType::f32, {5, F});
        glu(stream, {.x = x, .y = y, .activation = activation});
        const std::vector<double> inputs = x.values();
        GluGradArgs args{.x = x, .d_y = d_y, .d_x = d_x, .activation = activation};
        glu_grad(stream, args);
        check_glu_grad(inputs, d_y.values(), d_x.values(), F, activation, kEps32, 1e-35);
        args.d_x = x;  // in place, with the output replacing its gradient
        args.y = d_y;
        glu_grad(stream, args);
        EXPECT_EQ(x.values(), d_x.values());
        EXPECT_EQ(d_y.values(), y.values());
      }
  });
}

}  // namespace
}  // namespace brim::ops
