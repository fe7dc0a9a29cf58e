// SPDX-License-Identifier: Apache-2.0
#include "ops/layer_norm.h"

#include "ops/testing.h"

namespace brim {
namespace {
using namespace brim::testing;

struct Reference {
  std::vector<double> y, sum, mean, rstd, tolerance;
};

bool kept(const Dropout& d, int64_t row, int64_t column) {
  const uint64_t bits = dropout_bits(d.seed, d.site, static_cast<uint64_t>(d.first_row + row), static_cast<uint32_t>(column / 4));
  return dropout_keeps(bits, static_cast<int>(column & 3), dropout_threshold(d.probability));
}

Reference reference(const HostTensor& x, const HostTensor* residual, const HostTensor& gamma, const HostTensor& beta, double eps, const Dropout& drop) {
  Reference r;
  const int64_t T = x.rows(), H = x.cols();
  for (int64_t t = 0; t < T; ++t) {
    std::vector<double> s(H);
    double mean = 0, variance = 0, largest = 0;
    for (int64_t i = 0; i < H; ++i) {
      s[i] = x.at(t, i);
      if (drop.on()) s[i] = kept(drop, t, i) ? s[i] / (1 - static_cast<double>(drop.probability)) : 0;
      if (residual != nullptr) s[i] += residual->at(t, i);
      mean += s[i] / static_cast<double>(H);
      largest = std::max(largest, std::fabs(s[i]));
    }
    for (const double v : s) variance += (v - mean) * (v - mean) / static_cast<double>(H);
    const double rstd = 1 / std::sqrt(variance + eps);
    r.mean.push_back(mean);
    r.rstd.push_back(rstd);
    for (int64_t i = 0; i < H; ++i) {
      r.sum.push_back(s[i]);
      const double normal = (s[i] - mean) * rstd;
      r.y.push_back(normal * gamma.at(i) + beta.at(i));
      // The sum and the mean carry a few roundings of the largest magnitude (sums of H/lanes terms: sqrt growth, bounded by
      // 8 here), which rstd amplifies; then rstd, two products and one addition.
      r.tolerance.push_back(8 * kEps32 * (largest * rstd * std::fabs(gamma.at(i)) * (1 + std::fabs(normal)) +
                                          std::fabs(normal * gamma.at(i)) + std::fabs(beta.at(i))) +
                            1e-30);
    }
  }
  return r;
}

TEST(LayerNorm, AgreesWithFp64) {
  for_each_cpu_stream([](CpuStream& stream) {
    uint64_t seed = 1;
    for (const int64_t T : {0, 1, 2, 37})
      for (const int64_t H : {1, 3, 15, 16, 17, 63, 384, 768, 1000})
        for (const bool with_residual : {false, true})
          for (const double mean : {0.0, 100.0}) {
            SCOPED_TRACE(::testing::Message() << "T " << T << " H " << H << " residual " << with_residual << " mean " << mean);
            const HostTensor x = random_tensor(DType::f32, {T, H}, ++seed, 1, mean, 3), residual = random_tensor(DType::f32, {T, H}, ++seed);
            const HostTensor gamma = random_tensor(DType::f32, {H}, ++seed), beta = random_tensor(DType::f32, {H}, ++seed);
            LayerNormArgs args{.x = x, .gamma = gamma, .beta = beta, .eps = 1e-5f};
            if (with_residual) args.residual = residual;
            const HostTensor y(DType::f32, {T, H}, 1), sum(DType::f32, {T, H}), mean_out(DType::f32, {T}), rstd(DType::f32, {T});
            args.y = y;
            layer_norm(stream, args);
            const Reference want = reference(x, with_residual ? &residual : nullptr, gamma, beta, args.eps, {});
            EXPECT_TRUE(close(y.values(), want.y, [&](size_t i) { return want.tolerance[i]; }));
            // Training: with dropout, keeping what the backward pass needs.
            args.dropout = {.probability = 0.25f, .seed = seed, .site = 9, .first_row = 5};
            args.sum = sum, args.mean = mean_out, args.rstd = rstd;
            y.poison();
            layer_norm(stream, args);
            const Reference train = reference(x, with_residual ? &residual : nullptr, gamma, beta, args.eps, args.dropout);
            EXPECT_TRUE(close(y.values(), train.y, [&](size_t i) { return train.tolerance[i]; }));
            EXPECT_TRUE(close(sum.values(), train.sum, [&](size_t i) { return 3 * kEps32 * (std::fabs(train.sum[i]) + 200); }));
            EXPECT_TRUE(close(mean_out.values(), train.mean, 8 * kEps32 * (std::fabs(mean) * 2 + 8)));
            // Of one element the variance is exactly eps against rounding: rstd is then as exact as eps is.
            if (H > 1) {
              EXPECT_TRUE(close(rstd.values(), train.rstd, [&](size_t i) { return 16 * kEps32 * (200 * train.rstd[i] + 1) * train.rstd[i]; }));
            }
          }
  });
}

TEST(LayerNorm, WritesInPlace) {
  for_each_cpu_stream([](CpuStream& stream) {
    const HostTensor x = random_tensor(DType::f32, {5, 33}, 1), residual = random_tensor(DType::f32, {5, 33}, 2);
    const HostTensor gamma = random_tensor(DType::f32, {33}, 3), beta = random_tensor(DType::f32, {33}, 4), y(DType::f32, {5, 33});
    LayerNormArgs args{.x = x, .residual = residual, .gamma = gamma, .beta = beta, .y = y};
    layer_norm(stream, args);
    const HostTensor x2 = random_tensor(DType::f32, {5, 33}, 1), residual2 = random_tensor(DType::f32, {5, 33}, 2);
    args.y = args.x = x2;
    layer_norm(stream, args);
    EXPECT_TRUE(same_bits(x2, y));
    args.x = x, args.residual = args.y = residual2;
    layer_norm(stream, args);
    EXPECT_TRUE(same_bits(residual2, y));
  });
}

TEST(LayerNorm, NamesWhatDoesNotFit) {
  CpuStream stream(nullptr, best_isa());
  const HostTensor x(DType::f32, {2, 8}), y(DType::f32, {2, 9}), g(DType::f32, {8});
  try {
    layer_norm(stream, {.x = x, .gamma = g, .beta = g, .y = y});
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("y is f32[2,9], must be f32[2,8]"), std::string::npos) << e.what();
  }
  const HostTensor half(DType::f16, {2, 8});
  EXPECT_THROW(layer_norm(stream, {.x = half, .gamma = g, .beta = g, .y = half}), Error);
}

}  // namespace
}  // namespace brim
