// SPDX-License-Identifier: Apache-2.0
#include "ops/fp8_cast.h"

#include "ops/fp8_code.h"
#include "ops/testing.h"

namespace brim::ops {

using tensor::DType;

namespace {
using namespace brim::ops::testing;

// Rows, columns, maximum and column sums against fp64: codes are the nearest to the value, up to its own roundings.
TEST(Fp8Cast, WritesRowsAndColumnsOfEveryActivation) {
  device::CpuStream stream(nullptr, device::best_isa());
  for (const Activation activation : kEveryActivation)
    for (const bool slope : {false, true})
      for (const int64_t T : {1, 16, 37}) {
        constexpr int64_t C = 48;
        SCOPED_TRACE(::testing::Message() << static_cast<int>(activation) << " slope " << slope << " T " << T);
        const HostTensor x = random_tensor(DType::f32, {T, C}, 1, 2), gate = random_tensor(DType::f32, {T, C}, 2, 2),
                         rows(DType::f8e4m3, {T, C}), columns(DType::f8e4m3, {C, fp8_columns(T)}),
                         scale(DType::f32, {1}), inverse(DType::f32, {1}), amax(DType::f32, {1}), sums(DType::f32, {C});
        scale.fill(40);
        amax.fill(0.125);
        sums.fill(1);
        Fp8CastArgs args{.x = x, .rows = rows, .columns = columns, .scale = scale, .inverse = inverse, .amax = amax};
        args.d_bias = sums;
        args.activation = activation;
        if (slope) args.gate = gate;
        fp8_cast(stream, args);
        const auto* by_row = static_cast<const uint8_t*>(rows.view().data);
        const auto* by_column = static_cast<const uint8_t*>(columns.view().data);
        double most = 0.125;
        std::vector<double> sum(C, 1), magnitude(C, 1);
        for (int64_t c = 0; c < C; ++c) {
          for (int64_t t = 0; t < fp8_columns(T); ++t) {
            const uint8_t code = by_column[c * fp8_columns(T) + t];
            if (t >= T) {
              EXPECT_EQ(code, 0);
              continue;
            }
            EXPECT_EQ(by_row[t * C + c], code);
            const double v =
                slope ? x.at(t, c) * slope64(activation, gate.at(t, c)) : activation64(activation, x.at(t, c));
            const double want = std::clamp(v * 40, -448.0, 448.0);
            EXPECT_NEAR(from_e4m3(code), want, std::max(0x1p-4 * std::fabs(want), 0x1p-10) * 1.001 + 1e-4);
            most = std::max(most, std::fabs(v));
            sum[static_cast<size_t>(c)] += v;
            magnitude[static_cast<size_t>(c)] += std::fabs(v);
          }
          EXPECT_NEAR(sums.at(c), sum[static_cast<size_t>(c)], 1e-5 * magnitude[static_cast<size_t>(c)]);
        }
        EXPECT_NEAR(amax.at(0), most, 1e-5 * most);
        EXPECT_FLOAT_EQ(static_cast<float>(inverse.at(0)), 1.0f / 40);
      }
}

}  // namespace
}  // namespace brim::ops
