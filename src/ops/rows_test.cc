// SPDX-License-Identifier: Apache-2.0
#include "ops/rows.h"

#include "ops/testing.h"

namespace brim::ops {

using device::CpuStream;
using tensor::DType;

namespace {
using namespace brim::ops::testing;

TEST(GatherRows, CopiesRows) {
  for_each_cpu_stream([](CpuStream& stream) {
    for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
      const HostTensor x = random_tensor(type, {9, 13}, 1, 1, 0, 3), rows = int_tensor({8, 0, 0, 5}),
                       y(type, {4, 13}, 2);
      gather_rows(stream, {.x = x, .rows = rows, .y = y});
      for (int64_t b = 0; b < 4; ++b)
        for (int64_t i = 0; i < 13; ++i) EXPECT_EQ(y.at(b, i), x.at(rows.as<int32_t>()[b], i));
    }
    const HostTensor x = random_tensor(DType::f32, {2, 3}, 1), past = int_tensor({2}), y(DType::f32, {1, 3}),
                     none(DType::i32, {0}), nothing(DType::f32, {0, 3});
    EXPECT_THROW(gather_rows(stream, {.x = x, .rows = past, .y = y}), Error);
    gather_rows(stream, {.x = x, .rows = none, .y = nothing});
  });
}

TEST(PoolMean, MatchesFp64) {
  for_each_cpu_stream([](CpuStream& stream) {
    for (const auto& lengths : ragged_lengths())
      for (const int64_t H : {1, 17, 64}) {
        const std::vector<int32_t> starts = starts_of(lengths);
        const int64_t T = starts.back(), B = static_cast<int64_t>(lengths.size());
        const HostTensor x = random_tensor(DType::f32, {T, H}, 7, 1, 2, 1), start_view = int_tensor(starts),
                         y(DType::f32, {B, H});
        PoolMeanArgs args{.x = x, .y = y};
        args.batch = {.T = T, .B = B, .starts = start_view};
        pool_mean(stream, args);
        std::vector<double> want, tolerance;
        for (int64_t b = 0; b < B; ++b)
          for (int64_t i = 0; i < H; ++i) {
            double sum = 0, size = 0;
            for (int64_t t = starts[b]; t < starts[b + 1]; ++t) {
              sum += x.at(t, i);
              size += std::fabs(x.at(t, i));
            }
            const double n = std::max(1, lengths[b]);
            want.push_back(sum / n);
            tolerance.push_back((n + 2) * kEps32 * size / n);  // n additions, one reciprocal, one product
          }
        EXPECT_TRUE(close(y.values(), want, [&](size_t i) { return tolerance[i]; }));
      }
  });
}

TEST(PoolMeanGrad, MatchesFp64) {
  for_each_cpu_stream([](CpuStream& stream) {
    for (const auto& lengths : ragged_lengths())
      for (const GradWrite write : {GradWrite::overwrite, GradWrite::accumulate}) {
        const std::vector<int32_t> starts = starts_of(lengths);
        const int64_t T = starts.back(), B = static_cast<int64_t>(lengths.size()), H = 17;
        const HostTensor d_y = random_tensor(DType::f32, {B, H}, 7), start_view = int_tensor(starts),
                         d_x = random_tensor(DType::f32, {T, H}, 8, 1, 0, 2);
        std::vector<double> want = d_x.values();
        for (int64_t b = 0; b < B; ++b)
          for (int64_t t = starts[b]; t < starts[b + 1]; ++t)
            for (int64_t i = 0; i < H; ++i) {
              double& to = want[static_cast<size_t>(t * H + i)];
              to = d_y.at(b, i) / lengths[b] + (write == GradWrite::accumulate ? to : 0);
            }
        PoolMeanGradArgs args{.d_y = d_y, .d_x = d_x, .write = write};
        args.batch = {.T = T, .B = B, .starts = start_view};
        pool_mean_grad(stream, args);
        EXPECT_TRUE(close(d_x.values(), want, 16 * kEps32));
      }
  });
}

TEST(Softmax, MatchesFp64) {
  for_each_cpu_stream([](CpuStream& stream) {
    for (const int64_t rows : {0, 1, 5})
      for (const int64_t K : {1, 2, 3, 15, 16, 17, 1000})
        for (const double scale : {1.0, 30.0}) {
          const HostTensor x = random_tensor(DType::f32, {rows, K}, 3, scale, 0, 1), y(DType::f32, {rows, K});
          std::vector<double> want, sigmoid;
          std::vector<double> tolerance;
          for (int64_t r = 0; r < rows; ++r) {
            double top = -INFINITY, total = 0;
            for (int64_t i = 0; i < K; ++i) top = std::max(top, x.at(r, i));
            for (int64_t i = 0; i < K; ++i) total += std::exp(x.at(r, i) - top);
            for (int64_t i = 0; i < K; ++i) {
              want.push_back(std::exp(x.at(r, i) - top) / total);
              sigmoid.push_back(1 / (1 + std::exp(-x.at(r, i))));
              // The difference from the maximum is rounded once, which exp turns into a relative error; exp itself has
              // 2e-7.
              tolerance.push_back(want.back() * ((std::fabs(x.at(r, i) - top) + 24 + std::sqrt(K)) * kEps32 + 2e-7) +
                                  2e-38);
            }
          }
          softmax(stream, {.x = x, .y = y});
          EXPECT_TRUE(close(y.values(), want, [&](size_t i) { return tolerance[i]; }));
          y.poison();
          softmax(stream, {.x = x, .y = y, .sigmoid = true});
          EXPECT_TRUE(close(y.values(), sigmoid, [&](size_t i) { return 1e-6 * sigmoid[i] + 2e-38; }));
        }
  });
}

TEST(Softmax, KeepsExtremesFiniteAndShowsNanAndInfinity) {
  for_each_cpu_stream([](CpuStream& stream) {
    const HostTensor x(DType::f32, {4, 3}), y(DType::f32, {4, 3});
    const float rows[4][3] = {{3e38f, -3e38f, 0}, {-1e30f, -1e30f, -1e30f}, {-INFINITY, 0, -INFINITY}, {NAN, 0, 1}};
    for (int r = 0; r < 4; ++r)
      for (int i = 0; i < 3; ++i) x.set(r, i, rows[r][i]);
    softmax(stream, {.x = x, .y = y});
    EXPECT_EQ(y.at(0, 0), 1);
    EXPECT_EQ(y.at(0, 1), 0);
    EXPECT_NEAR(y.at(1, 2), 1.0 / 3, 1e-7);
    for (const int r : {2, 3})
      for (int i = 0; i < 3; ++i) EXPECT_TRUE(std::isnan(y.at(r, i))) << r << "," << i;
    softmax(stream, {.x = x, .y = y, .sigmoid = true});
    EXPECT_EQ(y.at(0, 0), 1);
    EXPECT_EQ(y.at(0, 1), 0);
    EXPECT_EQ(y.at(0, 2), 0.5);
    for (const int i : {0, 2}) EXPECT_TRUE(std::isnan(y.at(2, i))) << i;
    EXPECT_TRUE(std::isnan(y.at(3, 0)));
  });
}

TEST(Convert, RoundsLikeTheElementTypes) {
  for_each_cpu_stream([](CpuStream& stream) {
    const DType types[] = {DType::f32, DType::f16, DType::bf16};
    for (const DType from : types)
      for (const DType to : types)
        for (const int64_t n : {0, 1, 7, 33, 40000}) {
          const HostTensor x = random_tensor(from, {n}, 5, 3), y(to, {n}), want(to, {n});
          if (n > 7) {
            const double ends[] = {0, -0.0, 65519, 65520, -70000, 1e-8, 6e-8, 3e38};
            for (int i = 0; i < 8 && from == DType::f32; ++i) x.set(i, 0, ends[i]);
          }
          convert(stream, {.x = x, .y = y});
          for (int64_t i = 0; i < n; ++i) want.set(i, 0, x.at(i));
          EXPECT_TRUE(same_bits(y, want)) << dtype_name(from) << " to " << dtype_name(to) << " " << n;
        }
  });
}

TEST(Activate, MatchesFp64OverTheWholeRange) {
  for_each_cpu_stream([](CpuStream& stream) {
    for (const Activation activation : kEveryActivation) {
      const int64_t n = 4001;
      const HostTensor x(DType::f32, {3, n}, 1), y(DType::f32, {3, n});
      for (int64_t i = 0; i < n; ++i) {
        x.set(0, i, static_cast<double>(i - 2000) / 150);
        x.set(1, i, std::ldexp(i % 2 != 0 ? 1.0 : -1.0, static_cast<int>(i % 200) - 120));
        x.set(2, i, static_cast<double>(i - 2000) / 4e5);
      }
      activate(stream, {.x = x, .y = y, .activation = activation});
      std::vector<double> want, tolerance;
      for (const double v : x.values()) {
        want.push_back(activation64(activation, v));
        // e^x is 0 below -87.33; times x that is at most 1.1e-36.
        tolerance.push_back(activation_roundings(activation, v) * kEps32 * std::fabs(want.back()) + 1.1e-36);
      }
      EXPECT_TRUE(close(y.values(), want, [&](size_t i) { return tolerance[i]; })) << static_cast<int>(activation);
      activate(stream, {.x = x, .y = x, .activation = activation});  // in place
      EXPECT_TRUE(same_bits(x, y));
    }
    const HostTensor nan(DType::f32, {1, 2});
    activate(stream, {.x = nan, .y = nan});
    EXPECT_TRUE(std::isnan(nan.at(0, 0)));
  });
}

TEST(Rows, RejectEmptyAndMismatchedViews) {
  CpuStream stream(nullptr, device::best_isa());
  const HostTensor empty(DType::f32, {0, 4}), a(DType::f32, {2, 4}), b(DType::f32, {2, 5}), i8(DType::i8, {2, 4});
  activate(stream, {.x = empty, .y = empty});
  EXPECT_THROW(activate(stream, {.x = a, .y = b}), Error);
  EXPECT_THROW(softmax(stream, {.x = a, .y = b}), Error);
  EXPECT_THROW(convert(stream, {.x = a, .y = b}), Error);
  EXPECT_THROW(convert(stream, {.x = a, .y = i8}), Error);
}

TEST(ScatterRows, AddsToTheGivenRows) {
  for_each_cpu_stream([](CpuStream& stream) {
    const HostTensor d_y = random_tensor(DType::f32, {3, 21}, 1, 1, 0, 2), rows = int_tensor({4, 0, 2}),
                     d_x = random_tensor(DType::f32, {5, 21}, 2, 1, 0, 1);
    const HostTensor before = random_tensor(DType::f32, {5, 21}, 2);
    scatter_rows(stream, {.d_y = d_y, .rows = rows, .d_x = d_x});
    for (int64_t r = 0; r < 5; ++r)
      for (int64_t i = 0; i < 21; ++i) {
        float want = static_cast<float>(before.at(r, i));
        for (int64_t b = 0; b < 3; ++b)
          if (rows.as<int32_t>()[b] == r) want += static_cast<float>(d_y.at(b, i));
        EXPECT_EQ(d_x.at(r, i), want);
      }
    const HostTensor past = int_tensor({5, 0, 0});
    EXPECT_THROW(scatter_rows(stream, {.d_y = d_y, .rows = past, .d_x = d_x}), Error);
  });
}

TEST(ActivateGrad, SlopesMatchFiniteDifferences) {
  for (const Activation activation : kEveryActivation) {
    std::vector<double> x;
    for (double v = -6.05; v < 6; v += 0.1) x.push_back(v);
    std::vector<double> want;
    for (const double v : x) want.push_back(slope64(activation, v));
    const auto total = [&] {
      double sum = 0;
      for (const double v : x) sum += activation64(activation, v);
      return sum;
    };
    EXPECT_TRUE(close(want, finite_differences(x, total), 1e-8)) << static_cast<int>(activation);
  }
}

// The two terms of a slope may cancel (gelu's near x = -0.75) and their exponents are rounded; the output of tanh has
// one rounding.
double slope_size(Activation activation, double x) {
  if (activation == Activation::none || slope_reads_output(activation)) return 2;
  if (activation == Activation::gelu)
    return 0.5 * std::erfc(-x / std::sqrt(2.0)) + std::fabs(x) * std::exp(-x * x / 2) * 0.4 * (1 + x * x);
  const double z = gate64(activation, x), s = sigmoid64(z);
  return s * (1 + std::fabs(z)) + std::fabs(slope64(activation, x) - s) * (1 + std::fabs(z));
}

TEST(ActivateGrad, MatchesFp64) {
  for_each_cpu_stream([](CpuStream& stream) {
    for (const Activation activation : kEveryActivation) {
      const int64_t n = 1501;
      const HostTensor x(DType::f32, {2, n}, 1), y(DType::f32, {2, n}), d_y = random_tensor(DType::f32, {2, n}, 3),
                                                                        d_x(DType::f32, {2, n});
      for (int64_t i = 0; i < n; ++i) {
        x.set(0, i, static_cast<double>(i - 750) / 60);
        x.set(1, i, std::ldexp(i % 2 != 0 ? 1.0 : -1.0, static_cast<int>(i % 140) - 120));
      }
      activate(stream, {.x = x, .y = y, .activation = activation});
      const bool from_output = slope_reads_output(activation);
      activate_grad(stream, {.x = from_output ? y.view() : x.view(), .d_y = d_y, .d_x = d_x, .activation = activation});
      const std::vector<double> inputs = x.values(), upstream = d_y.values();
      std::vector<double> want, tolerance;
      for (size_t i = 0; i < inputs.size(); ++i) {
        const double v = inputs[i];
        want.push_back(upstream[i] * slope64(activation, v));
        tolerance.push_back(8 * kEps32 * std::fabs(upstream[i]) * slope_size(activation, v) + 1e-35);
      }
      EXPECT_TRUE(close(d_x.values(), want, [&](size_t i) { return tolerance[i]; })) << static_cast<int>(activation);
      const HostTensor in_place = random_tensor(DType::f32, {2, n}, 3), d_bias(DType::f32, {n});
      d_bias.fill(0.5);
      activate_grad(stream, {.x = from_output ? y.view() : x.view(),
                             .d_y = in_place,
                             .d_x = in_place,
                             .d_bias = d_bias,
                             .activation = activation});
      EXPECT_TRUE(same_bits(in_place, d_x));
      for (int64_t i = 0; i < n; ++i)
        ASSERT_EQ(static_cast<float>(d_bias.at(i)), static_cast<float>(d_x.at(0, i) + d_x.at(1, i) + 0.5)) << i;
      const HostTensor with_output = random_tensor(DType::f32, {2, n}, 3);
      activate_grad(stream, {.x = x, .d_y = with_output, .d_x = with_output, .y = x, .activation = activation});
      EXPECT_TRUE(same_bits(with_output, d_x));
      EXPECT_TRUE(same_bits(x, y)) << "the output, written over the input";
    }
  });
}

TEST(DropoutRows, MatchesTheGenerator) {
  for_each_cpu_stream([](CpuStream& stream) {
    for (const int64_t H : {1, 4, 30, 64, 67}) {
      const HostTensor x = random_tensor(DType::f32, {40, H}, 1), y(DType::f32, {40, H}, 3);
      const Dropout drop{.probability = 0.3f, .seed = 77, .site = 12, .first_row = 100};
      dropout_rows(stream, {.x = x, .y = y, .dropout = drop});
      for (int64_t r = 0; r < 40; ++r)
        for (int64_t i = 0; i < H; ++i)
          EXPECT_EQ(y.at(r, i), dropout_kept(drop, r, i) ? static_cast<float>(x.at(r, i)) * drop.scale() : 0.0f);
      // A chunk that begins at row 10 drops the same elements as the whole.
      const HostTensor chunk(DType::f32, {30, H});
      Dropout later = drop;
      later.first_row += 10;
      dropout_rows(stream, {.x = x.view().slice_rows(10, 40), .y = chunk, .dropout = later});
      for (int64_t r = 0; r < 30; ++r)
        for (int64_t i = 0; i < H; ++i) EXPECT_EQ(chunk.at(r, i), y.at(r + 10, i));
      const HostTensor sum = random_tensor(DType::f32, {40, H}, 2), before = random_tensor(DType::f32, {40, H}, 2);
      dropout_rows(stream, {.x = x, .y = sum, .dropout = drop, .factor = 0.5f, .write = GradWrite::accumulate});
      for (int64_t r = 0; r < 40; ++r)
        for (int64_t i = 0; i < H; ++i)
          EXPECT_NEAR(sum.at(r, i), before.at(r, i) + 0.5 * y.at(r, i), 4 * kEps32 * (1 + std::fabs(y.at(r, i))));
      dropout_rows(stream, {.x = x, .y = y, .dropout = {}, .factor = -3});
      for (int64_t r = 0; r < 40; ++r)
        for (int64_t i = 0; i < H; ++i) EXPECT_EQ(y.at(r, i), -3 * static_cast<float>(x.at(r, i)));
      dropout_rows(stream, {.x = x, .y = y, .dropout = {}});
      EXPECT_TRUE(same_bits(x, y));
    }
  });
}

// The dropped fraction equals the probability in every column and row, within 5 standard deviations.
TEST(Dropout, DropsTheSameFractionEverywhere) {
  for (const float p : {0.1f, 0.5f}) {
    const Dropout drop{.probability = p, .seed = 12345, .site = 3};
    const int n = 512;
    std::vector<int> by_row(n), by_column(n);
    int together = 0;
    for (int r = 0; r < n; ++r)
      for (int c = 0; c < n; ++c)
        if (!dropout_kept(drop, r, c)) {
          ++by_row[r];
          ++by_column[c];
          together += c > 0 && !dropout_kept(drop, r, c - 1);
        }
    const double deviation = std::sqrt(n * p * (1 - p));
    for (int i = 0; i < n; ++i) {
      EXPECT_NEAR(by_row[i], n * p, 5 * deviation);
      EXPECT_NEAR(by_column[i], n * p, 5 * deviation);
    }
    EXPECT_NEAR(together, n * (n - 1.0) * p * p, 5 * std::sqrt(n * (n - 1.0) * p * p));
  }
}

}  // namespace
}  // namespace brim::ops
