// SPDX-License-Identifier: Apache-2.0
#include "ops/layer_norm.h"

#include "ops/testing.h"

namespace brim::ops {

using device::CpuStream;
using tensor::DType;

namespace {
using namespace brim::ops::testing;

struct NormReference {
  std::vector<double> y, sum, mean, rstd, tolerance;
};

NormReference reference(const HostTensor& x, const HostTensor* residual, const HostTensor& gamma,
                        const HostTensor& beta, double eps, const Dropout& drop) {
  NormReference r;
  const int64_t T = x.rows(), H = x.cols();
  for (int64_t t = 0; t < T; ++t) {
    std::vector<double> s(H);
    double mean = 0, variance = 0, largest = 0;
    for (int64_t i = 0; i < H; ++i) {
      s[i] = x.at(t, i) * dropout_factor(drop, t, i);
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
      // The sum and the mean have a few roundings of the largest magnitude (sums of H/lanes terms: sqrt growth, bounded
      // by 8 here), amplified by rstd; then rstd, two products and one addition.
      r.tolerance.push_back(8 * kEps32 *
                                (largest * rstd * std::fabs(gamma.at(i)) * (1 + std::fabs(normal)) +
                                 std::fabs(normal * gamma.at(i)) + std::fabs(beta.at(i))) +
                            1e-30);
    }
  }
  return r;
}

TEST(LayerNorm, MatchesFp64) {
  for_each_cpu_stream([](CpuStream& stream) {
    uint64_t seed = 1;
    for (const int64_t T : {0, 1, 2, 37})
      for (const int64_t H : {1, 3, 15, 16, 17, 63, 384, 768, 1000})
        for (const bool with_residual : {false, true})
          for (const double mean : {0.0, 100.0}) {
            SCOPED_TRACE(::testing::Message()
                         << "T " << T << " H " << H << " residual " << with_residual << " mean " << mean);
            const HostTensor x = random_tensor(DType::f32, {T, H}, ++seed, 1, mean, 3),
                             residual = random_tensor(DType::f32, {T, H}, ++seed);
            const HostTensor gamma = random_tensor(DType::f32, {H}, ++seed),
                             beta = random_tensor(DType::f32, {H}, ++seed);
            LayerNormArgs args{.x = x, .gamma = gamma, .beta = beta, .eps = 1e-5f};
            if (with_residual) args.residual = residual;
            const HostTensor y(DType::f32, {T, H}, 1), sum(DType::f32, {T, H}), mean_out(DType::f32, {T}),
                rstd(DType::f32, {T});
            args.y = y;
            layer_norm(stream, args);
            const NormReference want = reference(x, with_residual ? &residual : nullptr, gamma, beta, args.eps, {});
            EXPECT_TRUE(close(y.values(), want.y, [&](size_t i) { return want.tolerance[i]; }));
            // Training: with dropout, storing the inputs of the backward pass.
            args.dropout = {.probability = 0.25f, .seed = seed, .site = 9, .first_row = 5};
            args.sum = sum;
            args.mean = mean_out;
            args.rstd = rstd;
            y.poison();
            layer_norm(stream, args);
            const NormReference train =
                reference(x, with_residual ? &residual : nullptr, gamma, beta, args.eps, args.dropout);
            EXPECT_TRUE(close(y.values(), train.y, [&](size_t i) { return train.tolerance[i]; }));
            EXPECT_TRUE(
                close(sum.values(), train.sum, [&](size_t i) { return 3 * kEps32 * (std::fabs(train.sum[i]) + 200); }));
            EXPECT_TRUE(close(mean_out.values(), train.mean, 8 * kEps32 * (std::fabs(mean) * 2 + 8)));
            // With a single element the variance is exactly eps up to rounding, so rstd is as accurate as eps.
            if (H > 1) {
              EXPECT_TRUE(close(rstd.values(), train.rstd,
                                [&](size_t i) { return 16 * kEps32 * (200 * train.rstd[i] + 1) * train.rstd[i]; }));
            }
          }
  });
}

TEST(LayerNorm, WritesInPlace) {
  for_each_cpu_stream([](CpuStream& stream) {
    const HostTensor x = random_tensor(DType::f32, {5, 33}, 1), residual = random_tensor(DType::f32, {5, 33}, 2);
    const HostTensor gamma = random_tensor(DType::f32, {33}, 3), beta = random_tensor(DType::f32, {33}, 4),
                     y(DType::f32, {5, 33});
    LayerNormArgs args{.x = x, .residual = residual, .gamma = gamma, .beta = beta, .y = y};
    layer_norm(stream, args);
    const HostTensor x2 = random_tensor(DType::f32, {5, 33}, 1), residual2 = random_tensor(DType::f32, {5, 33}, 2);
    args.y = args.x = x2;
    layer_norm(stream, args);
    EXPECT_TRUE(same_bits(x2, y));
    args.x = x;
    args.residual = args.y = residual2;
    layer_norm(stream, args);
    EXPECT_TRUE(same_bits(residual2, y));
  });
}

TEST(LayerNorm, NamesTheInvalidArgument) {
  CpuStream stream(nullptr, device::best_isa());
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

// ---- Gradient ----

struct Gradient {
  std::vector<double> d_sum, d_gamma, d_beta, d_sum_tolerance, d_gamma_tolerance, d_beta_tolerance;
};

// Normalised rows and their error from rounded inputs: from sums by their mean, from results by the inverse of their
// gain, which is exact up to a rounding.
struct Normals {
  std::vector<double> x, times_gamma;  // [T*H]; times_gamma is also known for columns that are not inverted
  std::vector<double> rstd, offset;    // [T]
};

Normals normals_of_sums(const std::vector<double>& sum, const std::vector<double>& gamma, int64_t T, double eps) {
  const auto H = static_cast<int64_t>(gamma.size());
  Normals n;
  for (int64_t t = 0; t < T; ++t) {
    double mean = 0, variance = 0;
    for (int64_t i = 0; i < H; ++i) mean += sum[t * H + i] / static_cast<double>(H);
    for (int64_t i = 0; i < H; ++i)
      variance += (sum[t * H + i] - mean) * (sum[t * H + i] - mean) / static_cast<double>(H);
    n.rstd.push_back(1 / std::sqrt(variance + eps));
    n.offset.push_back(std::fabs(mean) * n.rstd.back());
    for (int64_t i = 0; i < H; ++i) {
      n.x.push_back((sum[t * H + i] - mean) * n.rstd.back());
      n.times_gamma.push_back(n.x.back() * gamma[i]);
    }
  }
  return n;
}

Normals normals_of_results(const std::vector<double>& y, const std::vector<double>& rstd,
                           const std::vector<double>& gamma, const std::vector<double>& beta) {
  Normals n{{}, {}, rstd, std::vector<double>(rstd.size())};
  for (size_t i = 0; i < y.size(); ++i) {
    const double gain = gamma[i % gamma.size()], offset = beta[i % gamma.size()];
    const bool undone = std::fabs(gain) >= std::max<double>(kLeastGain, kLeastGainOfOffset * std::fabs(offset));
    n.times_gamma.push_back(y[i] - offset);
    n.x.push_back(undone ? n.times_gamma.back() / gain : 0);
  }
  return n;
}

Gradient gradient(const Normals& normals, const std::vector<double>& gamma, const std::vector<double>& d_y, int64_t T,
                  int64_t H) {
  Gradient g;
  g.d_sum.resize(T * H);
  g.d_sum_tolerance.resize(T * H);
  g.d_gamma.resize(H);
  g.d_beta.resize(H);
  g.d_gamma_tolerance.resize(H);
  g.d_beta_tolerance.resize(H);
  const double n = static_cast<double>(H);
  for (int64_t t = 0; t < T; ++t) {
    double mean_g = 0, mean_gx = 0, size_g = 0, size_gx = 0;
    const double rstd = normals.rstd[t], offset = normals.offset[t];
    const auto normal = [&](int64_t i) { return normals.x[t * H + i]; };
    for (int64_t i = 0; i < H; ++i) {
      const double dy = d_y[t * H + i], v = dy * gamma[i];
      mean_g += v / n;
      mean_gx += dy * normals.times_gamma[t * H + i] / n;
      size_g += std::fabs(v) / n;
      size_gx += std::fabs(dy * normals.times_gamma[t * H + i]) / n;
    }
    // The saved mean and rstd are rounded: x̂ is off by eps (|mean| rstd + |x̂|); then sums of H terms and a few
    // products.
    const double unit = (std::sqrt(n) + 24) * kEps32 * (1 + offset);
    for (int64_t i = 0; i < H; ++i) {
      const double dy = d_y[t * H + i], v = dy * gamma[i], x = normal(i);
      g.d_sum[t * H + i] = rstd * (v - mean_g - x * mean_gx);
      g.d_sum_tolerance[t * H + i] = unit * rstd * (std::fabs(v) + size_g + (1 + std::fabs(x)) * (size_gx + size_g));
      g.d_gamma[i] += dy * x;
      g.d_beta[i] += dy;
      const double rounding = (std::sqrt(static_cast<double>(T)) + 8) * kEps32;
      g.d_gamma_tolerance[i] += rounding * std::fabs(dy) * (std::fabs(x) + 1 + offset) * 2;
      g.d_beta_tolerance[i] += rounding * std::fabs(dy);
    }
  }
  return g;
}

TEST(LayerNormGrad, ReferenceMatchesFiniteDifferences) {
  const int64_t T = 3, H = 7;
  const double eps = 1e-5;
  std::vector<double> sum = random_tensor(DType::f64, {T, H}, 1, 1, 0.3).values(),
                      gamma = random_tensor(DType::f64, {H}, 2).values();
  std::vector<double> beta = random_tensor(DType::f64, {H}, 3).values();
  const std::vector<double> d_y = random_tensor(DType::f64, {T, H}, 4).values();
  const auto loss = [&] {
    double total = 0;
    for (int64_t t = 0; t < T; ++t) {
      double mean = 0, variance = 0;
      for (int64_t i = 0; i < H; ++i) mean += sum[t * H + i] / H;
      for (int64_t i = 0; i < H; ++i) variance += (sum[t * H + i] - mean) * (sum[t * H + i] - mean) / H;
      for (int64_t i = 0; i < H; ++i)
        total += d_y[t * H + i] * ((sum[t * H + i] - mean) / std::sqrt(variance + eps) * gamma[i] + beta[i]);
    }
    return total;
  };
  const Normals normals = normals_of_sums(sum, gamma, T, eps);
  std::vector<double> y;
  for (size_t i = 0; i < normals.x.size(); ++i) y.push_back(normals.x[i] * gamma[i % H] + beta[i % H]);
  EXPECT_TRUE(close(normals_of_results(y, normals.rstd, gamma, beta).x, normals.x, 1e-12));
  const Gradient g = gradient(normals, gamma, d_y, T, H);
  EXPECT_TRUE(close(g.d_sum, finite_differences(sum, loss), 1e-8));
  EXPECT_TRUE(close(g.d_gamma, finite_differences(gamma, loss), 1e-8));
  EXPECT_TRUE(close(g.d_beta, finite_differences(beta, loss), 1e-8));
}

// Forward with dropout, then backward from the sums or from the results: returns d_sum, d_x, d_gamma, d_beta, d_bias.
// One gain is zero and one is tiny relative to its offset.
std::vector<HostTensor> run_gradient(CpuStream& stream, int64_t T, int64_t H, double mean, const Dropout& drop,
                                     GradWrite write, uint64_t seed, bool from_y, Normals* normals_out) {
  const HostTensor x = random_tensor(DType::f32, {T, H}, seed, 1, mean),
                   residual = random_tensor(DType::f32, {T, H}, seed + 1);
  const HostTensor gamma = random_tensor(DType::f32, {H}, seed + 2), beta = random_tensor(DType::f32, {H}, seed + 3);
  gamma.set(0, 0, 0);
  if (H > 2) gamma.set(1, 0, beta.at(1) / 300);
  const HostTensor d_y = random_tensor(DType::f32, {T, H}, seed + 4, 1, 0, 3);
  HostTensor y(DType::f32, {T, H}), sum(DType::f32, {T, H}), means(DType::f32, {T}), rstd(DType::f32, {T});
  layer_norm(stream, {.x = x,
                      .residual = residual,
                      .gamma = gamma,
                      .beta = beta,
                      .y = y,
                      .sum = sum,
                      .mean = means,
                      .rstd = rstd,
                      .eps = 1e-5f,
                      .dropout = drop});
  std::vector<HostTensor> out;
  out.push_back(write == GradWrite::accumulate ? random_tensor(DType::f32, {T, H}, seed + 5)
                                               : HostTensor(DType::f32, {T, H}));
  out.emplace_back(DType::f32, std::initializer_list<int64_t>{T, H}, 1);
  out.push_back(random_tensor(DType::f32, {H}, seed + 6));
  out.push_back(random_tensor(DType::f32, {H}, seed + 7));
  out.push_back(random_tensor(DType::f32, {H}, seed + 8));
  const int threads = stream.pool() == nullptr ? 1 : stream.pool()->size();
  const HostTensor scratch = bytes_tensor(layer_norm_grad_scratch_bytes(stream, T, H, threads));
  LayerNormGradArgs args{.rstd = rstd,
                         .gamma = gamma,
                         .d_y = d_y,
                         .d_sum = out[0],
                         .d_x = out[1],
                         .d_gamma = out[2],
                         .d_beta = out[3],
                         .d_bias = out[4],
                         .scratch = scratch,
                         .d_sum_write = write,
                         .dropout = drop};
  if (from_y) {
    args.y = y;
    args.beta = beta;
  } else {
    args.sum = sum;
    args.mean = means;
  }
  layer_norm_grad(stream, args);
  if (normals_out != nullptr)
    *normals_out = from_y ? normals_of_results(y.values(), rstd.values(), gamma.values(), beta.values())
                          : normals_of_sums(sum.values(), gamma.values(), T, static_cast<double>(1e-5f));
  return out;
}

TEST(LayerNormGrad, MatchesFp64) {
  for_each_cpu_stream([](CpuStream& stream) {
    uint64_t seed = 50;
    for (const int64_t T : {0, 1, 15, 17, 130})
      for (const int64_t H : {2, 15, 16, 33, 384})
        for (const double mean : {0.0, 30.0})
          for (const int way : {0, 1, 2, 3}) {
            const GradWrite write = way % 2 == 0 ? GradWrite::overwrite : GradWrite::accumulate;
            const bool from_y = way / 2 == 1;
            SCOPED_TRACE(::testing::Message() << "T " << T << " H " << H << " mean " << mean << " write "
                                              << static_cast<int>(write) << " from y " << from_y);
            seed += 20;
            const Dropout drop{.probability = T % 2 == 0 ? 0.0f : 0.3f, .seed = seed, .site = 5, .first_row = 2};
            Normals normals;
            const std::vector<HostTensor> got = run_gradient(stream, T, H, mean, drop, write, seed, from_y, &normals);
            std::vector<double> gamma = random_tensor(DType::f32, {H}, seed + 2).values();
            const std::vector<double> d_y = random_tensor(DType::f32, {T, H}, seed + 4).values();
            gamma[0] = 0;
            if (H > 2) gamma[1] = static_cast<float>(random_tensor(DType::f32, {H}, seed + 3).at(1) / 300);
            Gradient want = gradient(normals, gamma, d_y, T, H);
            const std::vector<double> before = random_tensor(DType::f32, {T, H}, seed + 5).values();
            std::vector<double> d_x(want.d_sum.size());
            for (size_t i = 0; i < d_x.size(); ++i) {
              if (write == GradWrite::accumulate) want.d_sum[i] += before[i];
              want.d_sum_tolerance[i] += 2 * kEps32 * std::fabs(want.d_sum[i]);
              d_x[i] = want.d_sum[i] * dropout_factor(drop, static_cast<int64_t>(i) / H, static_cast<int64_t>(i) % H);
            }
            EXPECT_TRUE(close(got[0].values(), want.d_sum, [&](size_t i) { return want.d_sum_tolerance[i]; }));
            EXPECT_TRUE(close(got[1].values(), d_x, [&](size_t i) { return 2 * want.d_sum_tolerance[i]; }));
            const std::vector<double> gamma_before = random_tensor(DType::f32, {H}, seed + 6).values(),
                                      beta_before = random_tensor(DType::f32, {H}, seed + 7).values();
            for (int64_t i = 0; i < H; ++i) {
              want.d_gamma[i] += gamma_before[i];
              want.d_beta[i] += beta_before[i];
            }
            EXPECT_TRUE(close(got[2].values(), want.d_gamma, [&](size_t i) {
              return want.d_gamma_tolerance[i] + 2 * kEps32 * std::fabs(want.d_gamma[i]);
            }));
            EXPECT_TRUE(close(got[3].values(), want.d_beta, [&](size_t i) {
              return want.d_beta_tolerance[i] + 2 * kEps32 * std::fabs(want.d_beta[i]);
            }));
            std::vector<double> d_bias = random_tensor(DType::f32, {H}, seed + 8).values();
            const std::vector<double> stored = got[1].values();
            for (size_t i = 0; i < stored.size(); ++i) d_bias[i % static_cast<size_t>(H)] += stored[i];
            EXPECT_TRUE(close(got[4].values(), d_bias, [&](size_t i) {
              return 2 * kEps32 * (std::fabs(d_bias[i]) + 1);  // summed in double
            }));
          }
  });
}

TEST(LayerNorm, MissingBetaEqualsABetaOfZero) {
  for_each_cpu_stream([](CpuStream& stream) {
    const int64_t T = 9, H = 70;
    const HostTensor x = random_tensor(DType::f32, {T, H}, 1), gamma = random_tensor(DType::f32, {H}, 2),
                     zero(DType::f32, {H}), with(DType::f32, {T, H}), without(DType::f32, {T, H}),
                     mean(DType::f32, {T}), rstd(DType::f32, {T});
    zero.fill(0);
    layer_norm(stream, {.x = x, .gamma = gamma, .beta = zero, .y = with, .mean = mean, .rstd = rstd});
    layer_norm(stream, {.x = x, .gamma = gamma, .y = without});
    EXPECT_TRUE(same_bits(with, without));
    const HostTensor d_y = random_tensor(DType::f32, {T, H}, 4), d_sum(DType::f32, {T, H}), d_beta(DType::f32, {H}),
                     scratch = bytes_tensor(layer_norm_grad_scratch_bytes(stream, T, H, 2));
    const HostTensor d_gamma[2] = {random_tensor(DType::f32, {H}, 5), random_tensor(DType::f32, {H}, 5)};
    d_beta.fill(0);
    LayerNormGradArgs args{.sum = x, .mean = mean, .rstd = rstd, .gamma = gamma, .d_y = d_y, .d_sum = d_sum};
    args.scratch = scratch;
    args.d_gamma = d_gamma[0];
    args.d_beta = d_beta;
    layer_norm_grad(stream, args);
    const std::vector<double> first = d_sum.values();
    args.d_gamma = d_gamma[1];
    args.d_beta = {};
    layer_norm_grad(stream, args);
    EXPECT_EQ(first, d_sum.values());
    EXPECT_TRUE(same_bits(d_gamma[0], d_gamma[1]));
  });
}

TEST(LayerNormGrad, GivesSameBitsForAllThreadCounts) {
  expect_same_bits_for_all_thread_counts([](CpuStream& stream) {
    return run_gradient(stream, 300, 65, 0, {.probability = 0.1f, .seed = 3, .site = 1}, GradWrite::overwrite, 9, true,
                        nullptr);
  });
}

}  // namespace
}  // namespace brim::ops
