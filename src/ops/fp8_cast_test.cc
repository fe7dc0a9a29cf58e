// SPDX-License-Identifier: Apache-2.0
#include "ops/fp8_cast.h"

#include <cstring>
#include <random>

#include "ops/fp8_code.h"
#include "ops/layer_norm.h"
#include "ops/linear.h"
#include "ops/testing.h"

namespace brim::ops {

using tensor::DType;

namespace {
using namespace brim::ops::testing;

// Rows, columns, maximum and column sums compared with fp64: codes are the nearest to the value, up to its rounding.
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

// The copies of a norm match its stored output, forward and backward.
TEST(Fp8Copy, NormsCopyTheirStoredOutput) {
  device::CpuStream stream(nullptr, device::best_isa());
  constexpr int64_t T = 21, H = 32;
  const auto copies = [](const HostTensor& rows, const HostTensor& columns, const HostTensor& scale,
                         const HostTensor& amax) {
    scale.fill(57);
    amax.fill(0);
    return Fp8Copy{rows, columns, scale, amax};
  };
  const HostTensor x = random_tensor(DType::f32, {T, H}, 1), gamma = random_tensor(DType::f32, {H}, 2),
                   d_y = random_tensor(DType::f32, {T, H}, 3), y(DType::f32, {T, H}), d_x(DType::f32, {T, H}),
                   mean(DType::f32, {T}), rstd(DType::f32, {T}), d_gamma(DType::f32, {H});
  d_gamma.fill(0);
  for (const bool backward : {false, true}) {
    const HostTensor rows(DType::f8e4m3, {T, H}), columns(DType::f8e4m3, {H, fp8_columns(T)}), scale(DType::f32, {1}),
        amax(DType::f32, {1}), rows_after(DType::f8e4m3, {T, H}), columns_after(DType::f8e4m3, {H, fp8_columns(T)}),
        scale_after(DType::f32, {1}), amax_after(DType::f32, {1});
    const Fp8Copy wanted = copies(rows, columns, scale, amax),
                  after = copies(rows_after, columns_after, scale_after, amax_after);
    if (!backward) {
      LayerNormArgs args{.x = x, .gamma = gamma, .y = y, .mean = mean, .rstd = rstd};
      args.train_fp8 = wanted;
      layer_norm(stream, args);
    } else {
      const HostTensor scratch = bytes_tensor(layer_norm_grad_scratch_bytes(stream, T, H, 1));
      LayerNormGradArgs args{.sum = x, .mean = mean, .rstd = rstd, .gamma = gamma, .d_y = d_y, .d_sum = d_x};
      args.d_gamma = d_gamma;
      args.scratch = scratch;
      args.train_fp8 = wanted;
      layer_norm_grad(stream, args);
    }
    fp8_copy(stream, backward ? d_x : y, after);
    EXPECT_EQ(std::memcmp(rows.view().data, rows_after.view().data, T * H), 0);
    EXPECT_EQ(std::memcmp(columns.view().data, columns_after.view().data, H * fp8_columns(T)), 0);
    EXPECT_GT(amax.at(0), 0);
    EXPECT_EQ(amax.at(0), amax_after.at(0));
  }
}

// The reference product of fp8 training compared with fp64: exact up to one rounding of the sum.
TEST(Fp8Linear, MultipliesTheDecodedValues) {
  device::CpuStream stream(nullptr, device::best_isa());
  for (const int64_t T : {1, 7}) {
    constexpr int64_t N = 32, K = 48;
    const HostTensor x(DType::f8e4m3, {T, K}), w(DType::f8e4m3, {N, K}),
        bias = random_tensor(DType::f32, {N}, 1), y = random_tensor(DType::f32, {T, N}, 2), x_inverse(DType::f32, {1}),
        w_inverse(DType::f32, {1});
    const std::vector<double> before = y.values();
    x_inverse.fill(0.25);
    w_inverse.fill(0.5);
    const auto codes = [](const HostTensor& t, uint32_t seed) {
      std::mt19937 random(seed);
      auto* bytes = static_cast<uint8_t*>(t.view().data);
      for (int64_t i = 0; i < t.rows() * t.cols(); ++i)
        bytes[i] = static_cast<uint8_t>(random() % 0x70 | (random() & 0x80));
      return bytes;
    };
    const uint8_t *xs = codes(x, 1), *ws = codes(w, 2);
    LinearArgs args{.x = x, .bias = bias, .residual = y, .y = y};
    args.w = {.N = N, .K = K, .precision = Precision::fp8, .data = w, .scale = w_inverse};
    args.x_scale = x_inverse;
    linear(stream, args);
    for (int64_t t = 0; t < T; ++t)
      for (int64_t n = 0; n < N; ++n) {
        double sum = 0;
        for (int64_t k = 0; k < K; ++k) sum += from_e4m3(xs[t * K + k]) * from_e4m3(ws[n * K + k]);
        const double want = sum / 8 + bias.at(n) + before[static_cast<size_t>(t * N + n)];
        EXPECT_NEAR(y.at(t, n), want, 1e-7 * std::fabs(want) + 1e-12 * std::fabs(sum));
      }
  }
}

}  // namespace
}  // namespace brim::ops
