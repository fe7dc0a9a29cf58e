// SPDX-License-Identifier: Apache-2.0
// Layer norm and embedding on CUDA, and their gradients, compared with fp64.
#include "base/token.h"
#include "ops/cuda/testing.h"
#include "ops/embedding.h"
#include "ops/layer_norm.h"

namespace brim::ops {

using tensor::DType;

namespace {
using namespace brim::ops::testing;

struct NormReference {
  std::vector<double> y, mean, rstd, tolerance;
};
bool kept(const Dropout& d, int64_t row, int64_t column) {
  const uint64_t bits =
      dropout_bits(d.seed, d.site, static_cast<uint64_t>(d.first_row + row), static_cast<uint32_t>(column / 4));
  return dropout_keeps(bits, static_cast<int>(column & 3), dropout_threshold(d.probability));
}
// Layer norm of rows of `sum`. The sum and the mean have a few fp32 roundings of the row's largest magnitude (8 bounds
// the sums of H/32 terms here), amplified by rstd; then rstd (2 ulp), products and an addition; then one rounding to
// the type.
NormReference norm_reference(const std::vector<double>& sum, int64_t H, const HostTensor& gamma, const HostTensor& beta,
                             double eps, DType type, const Dropout& after) {
  NormReference r;
  for (size_t row = 0; row * H < sum.size(); ++row) {
    double mean = 0, variance = 0, largest = 0;
    const double* s = sum.data() + row * H;
    for (int64_t i = 0; i < H; ++i) {
      mean += s[i] / static_cast<double>(H);
      largest = std::max(largest, std::fabs(s[i]));
    }
    for (int64_t i = 0; i < H; ++i) variance += (s[i] - mean) * (s[i] - mean) / static_cast<double>(H);
    const double rstd = 1 / std::sqrt(variance + eps);
    r.mean.push_back(mean);
    r.rstd.push_back(rstd);
    for (int64_t i = 0; i < H; ++i) {
      const double normal = (s[i] - mean) * rstd;
      double y = normal * gamma.at(i) + beta.at(i);
      double error = 8 * kEps32 *
                     (largest * rstd * std::fabs(gamma.at(i)) * (1 + std::fabs(normal)) +
                      std::fabs(normal * gamma.at(i)) + std::fabs(beta.at(i)));
      if (after.on()) {
        const double scale =
            kept(after, static_cast<int64_t>(row), i) ? 1 / (1 - static_cast<double>(after.probability)) : 0;
        y *= scale;
        error = (error + 2 * kEps32 * std::fabs(y)) * scale;
      }
      r.y.push_back(y);
      r.tolerance.push_back(error + eps_of(type) * (std::fabs(y) + error) + smallest_of(type));
    }
  }
  return r;
}

std::vector<int64_t> widths() {
  if (Gpu::emulated()) return {8, 384, 768, 1024, 1032, 2056};
  return {8, 128, 248, 256, 264, 312, 384, 512, 768, 776, 1024, 1032, 2048, 2056, 3072, 4088, 4096};
}

using CudaLayerNorm = CudaOps;

TEST_F(CudaLayerNorm, MatchesFp64) {
  uint64_t seed = 1;
  for (const DType type : kActivationTypes)
    for (const int64_t H : widths())
      for (const int64_t T : {1, 7, 8, 9, 37})
        for (const bool with_residual : {false, true})
          for (const double offset : {0.0, 50.0}) {
            if (T > 1 && H > 2048 && offset != 0) continue;
            SCOPED_TRACE(::testing::Message() << dtype_name(type) << " T " << T << " H " << H << " residual "
                                              << with_residual << " offset " << offset);
            const HostTensor x = random_tensor(type, {T, H}, ++seed, 1, offset, 8),
                             residual = random_tensor(type, {T, H}, ++seed);
            const HostTensor gamma = random_tensor(type, {H}, ++seed), beta = random_tensor(type, {H}, ++seed);
            const DeviceTensor dx(x), dr(residual), dg(gamma), db(beta), y(type, {T, H}, 16), y8(DType::f8e4m3, {T, H}),
                scale(random_tensor(DType::f32, {1}, 1, 0, 16));
            LayerNormArgs args{.x = dx, .gamma = dg, .beta = db, .y = y, .y_fp8 = y8, .fp8_scale = scale, .eps = 1e-5f};
            if (with_residual) args.residual = dr;
            layer_norm(Gpu::stream(), args);
            std::vector<double> sum;
            for (int64_t t = 0; t < T; ++t)
              for (int64_t i = 0; i < H; ++i) sum.push_back(x.at(t, i) + (with_residual ? residual.at(t, i) : 0));
            const NormReference want = norm_reference(sum, H, gamma, beta, args.eps, type, {});
            EXPECT_TRUE(close(y.values(), want.y, [&](size_t i) { return want.tolerance[i]; }));
            std::vector<double> eight = want.y;
            for (double& v : eight) v = std::clamp(v * 16, -448.0, 448.0);
            EXPECT_TRUE(close(y8.values(), eight, [&](size_t i) {
              return 0x1p-4 * (std::fabs(eight[i]) + 16 * want.tolerance[i]) + 16 * want.tolerance[i] + 0x1p-10;
            }));
          }
}

// Codes are those of the values before they are rounded to the activation type. A row with NaN keeps it in its scale.
TEST_F(CudaLayerNorm, WritesInt8CodesWithAScalePerRow) {
  uint64_t seed = 1;
  for (const DType type : kActivationTypes)
    for (const int64_t H : widths()) {
      const int64_t T = 9;
      SCOPED_TRACE(::testing::Message() << dtype_name(type) << " H " << H);
      const HostTensor x = random_tensor(type, {T, H}, ++seed), gamma = random_tensor(type, {H}, ++seed),
                       beta = random_tensor(type, {H}, ++seed);
      x.set(4, H / 2, std::nan(""));
      const DeviceTensor dx(x), dg(gamma), db(beta), y(type, {T, H}), codes(DType::i8, {T, H}), scale(DType::f32, {T});
      LayerNormArgs args{.x = dx, .gamma = dg, .beta = db, .y = y, .y_fp8 = codes, .fp8_scale = scale, .eps = 1e-5f};
      layer_norm(Gpu::stream(), args);
      std::vector<double> sum;
      for (int64_t t = 0; t < T; ++t)
        for (int64_t i = 0; i < H; ++i) sum.push_back(x.at(t, i));
      const NormReference want = norm_reference(sum, H, gamma, beta, args.eps, type, {});
      const HostTensor got = codes.host(), scales = scale.host();
      EXPECT_TRUE(close(y.values(), want.y, [&](size_t i) { return want.tolerance[i]; }));
      for (int64_t t = 0; t < T; ++t) {
        const auto at = [&](int64_t i) { return static_cast<size_t>(t * H + i); };
        if (t == 4) {
          EXPECT_TRUE(std::isnan(scales.at(t)));
          continue;
        }
        double most = 0, error = 0;
        for (int64_t i = 0; i < H; ++i) {
          most = std::max(most, std::fabs(want.y[at(i)]));
          error = std::max(error, want.tolerance[at(i)]);
        }
        ASSERT_NEAR(scales.at(t), most / 127, (error + 4 * kEps32 * most) / 127) << t;
        for (int64_t i = 0; i < H; ++i)
          ASSERT_LE(std::fabs(got.at(t, i) * scales.at(t) - want.y[at(i)]),
                    scales.at(t) * 0.501 + want.tolerance[at(i)])
              << t << " " << i;
      }
    }
}

TEST_F(CudaLayerNorm, StoresStatisticsForTraining) {
  uint64_t seed = 1;
  for (const DType type : kActivationTypes)
    for (const int64_t H : {384, 768, 1024, 1536}) {
      const int64_t T = 11;
      SCOPED_TRACE(::testing::Message() << dtype_name(type) << " H " << H);
      const HostTensor x = random_tensor(type, {T, H}, ++seed), residual = random_tensor(type, {T, H}, ++seed);
      const HostTensor gamma = random_tensor(type, {H}, ++seed), beta = random_tensor(type, {H}, ++seed);
      const DeviceTensor dx(x), dr(residual), dg(gamma), db(beta), y(type, {T, H}), sum(type, {T, H}),
          mean(DType::f32, {T}), rstd(DType::f32, {T});
      LayerNormArgs args{.x = dx,
                         .residual = dr,
                         .gamma = dg,
                         .beta = db,
                         .y = y,
                         .sum = sum,
                         .mean = mean,
                         .rstd = rstd,
                         .eps = 1e-5f};
      args.dropout = {.probability = 0.25f, .seed = seed, .site = 9, .first_row = 5};
      layer_norm(Gpu::stream(), args);
      std::vector<double> s;
      for (int64_t t = 0; t < T; ++t)
        for (int64_t i = 0; i < H; ++i)
          s.push_back((kept(args.dropout, t, i) ? x.at(t, i) / 0.75 : 0) + residual.at(t, i));
      const NormReference want = norm_reference(s, H, gamma, beta, args.eps, type, {});
      EXPECT_TRUE(close(y.values(), want.y, [&](size_t i) { return want.tolerance[i]; }));
      EXPECT_TRUE(close(sum.values(), s, [&](size_t i) {
        return (eps_of(type) + 3 * kEps32) * std::fabs(s[i]) + 4 * kEps32 + smallest_of(type);
      }));
      EXPECT_TRUE(close(mean.values(), want.mean, 40 * kEps32));
      EXPECT_TRUE(close(rstd.values(), want.rstd, 40 * kEps32));
    }
}

TEST_F(CudaLayerNorm, WritesInPlace) {
  for (const int64_t H : {768, 1536}) {
    const DeviceTensor gamma(random_tensor(DType::bf16, {H}, 3)), beta(random_tensor(DType::bf16, {H}, 4)),
        y(DType::bf16, {13, H});
    const DeviceTensor x(random_tensor(DType::bf16, {13, H}, 1)), residual(random_tensor(DType::bf16, {13, H}, 2)),
        x2(random_tensor(DType::bf16, {13, H}, 1)), residual2(random_tensor(DType::bf16, {13, H}, 2));
    LayerNormArgs args{.x = x, .residual = residual, .gamma = gamma, .beta = beta, .y = y};
    layer_norm(Gpu::stream(), args);
    args.x = args.y = x2;
    layer_norm(Gpu::stream(), args);
    EXPECT_TRUE(same_bits(x2.host(), y.host()));
    args.x = x;
    args.residual = args.y = residual2;
    layer_norm(Gpu::stream(), args);
    EXPECT_TRUE(same_bits(residual2.host(), y.host()));
  }
}

using CudaEmbedding = CudaOps;

TEST_F(CudaEmbedding, MatchesFp64) {
  uint64_t seed = 1;
  for (const DType type : kActivationTypes)
    for (const int64_t H : widths())
      for (const int64_t T : {1, 8, 21})
        for (const bool train : {false, true})
          for (const bool with_type : {false, true}) {
            SCOPED_TRACE(::testing::Message() << dtype_name(type) << " T " << T << " H " << H << " train " << train);
            const int64_t V = 50, P = 30;
            const HostTensor word = random_tensor(type, {V, H}, ++seed), position = random_tensor(type, {P, H}, ++seed),
                             kind = random_tensor(type, {2, H}, ++seed);
            const HostTensor gamma = random_tensor(type, {H}, ++seed), beta = random_tensor(type, {H}, ++seed);
            std::vector<int32_t> ids, positions;
            for (int64_t t = 0; t < T; ++t) {
              ids.push_back(static_cast<int32_t>(t * 7 % V));
              positions.push_back(static_cast<int32_t>((2 + t) % P));
            }
            ids[0] = V - 1;
            std::vector<int32_t> tokens;
            for (int64_t t = 0; t < T; ++t) tokens.push_back(typed(ids[t], t % 3 == 1 ? 1 : 0));
            const DeviceTensor dw(word), dp(position), dt(kind), dg(gamma), db(beta), di(int_tensor(tokens)),
                dq(int_tensor(positions)), y(type, {T, H}), sum(type, {T, H}), mean(DType::f32, {T}),
                rstd(DType::f32, {T});
            EmbeddingArgs args{.word = dw, .position = dp, .gamma = dg, .beta = db, .y = y, .eps = 1e-5f};
            args.batch.T = T;
            args.batch.ids = di;
            args.batch.positions = dq;
            if (with_type) args.type = dt;
            if (train) {
              args.sum = sum;
              args.mean = mean;
              args.rstd = rstd;
              args.dropout = {.probability = 0.1f, .seed = seed, .site = 1, .first_row = 2};
            }
            embedding(Gpu::stream(), args);
            std::vector<double> s;
            for (int64_t t = 0; t < T; ++t)
              for (int64_t i = 0; i < H; ++i)
                s.push_back(word.at(ids[t], i) + position.at(positions[t], i) +
                            (with_type ? kind.at(t % 3 == 1 ? 1 : 0, i) : 0));
            const NormReference want = norm_reference(s, H, gamma, beta, args.eps, type, args.dropout);
            EXPECT_TRUE(close(y.values(), want.y, [&](size_t i) { return want.tolerance[i]; }));
            if (!train) continue;
            EXPECT_TRUE(close(sum.values(), s, [&](size_t i) {
              return (eps_of(type) + 3 * kEps32) * std::fabs(s[i]) + 6 * kEps32 + smallest_of(type);
            }));
            EXPECT_TRUE(close(mean.values(), want.mean, 60 * kEps32));
            EXPECT_TRUE(close(rstd.values(), want.rstd, [&](size_t i) { return 60 * kEps32 * want.rstd[i]; }));
          }
}

// Without beta and positions: same results as with zeros.
TEST_F(CudaOps, NormsAndEmbedsWithoutBetaAndPositions) {
  for (const DType type : kActivationTypes) {
    const int64_t T = 5, H = 264;
    const DeviceTensor x(random_tensor(type, {T, H}, 1)), gamma(random_tensor(type, {H}, 2)),
        zero(random_tensor(type, {H}, 3, 0)), zeros(random_tensor(type, {T, H}, 3, 0)), with(type, {T, H}),
        without(type, {T, H}), ids(int_tensor({4, 0, 3, 1, 2})), positions(int_tensor({0, 1, 2, 3, 4}));
    layer_norm(Gpu::stream(), {.x = x, .gamma = gamma, .beta = zero, .y = with});
    layer_norm(Gpu::stream(), {.x = x, .gamma = gamma, .y = without});
    EXPECT_TRUE(same_bits(with.host(), without.host()));
    EmbeddingArgs args{.word = x, .position = zeros, .gamma = gamma, .beta = zero, .y = with};
    args.batch = {.T = T, .ids = ids, .positions = positions};
    embedding(Gpu::stream(), args);
    args.position = args.beta = {};
    args.y = without;
    embedding(Gpu::stream(), args);
    EXPECT_TRUE(same_bits(with.host(), without.host()));
    // Gradients too: nothing is written for missing outputs.
    const DeviceTensor mean(random_tensor(DType::f32, {T}, 5)), rstd(random_tensor(DType::f32, {T}, 6)),
        d_sum(type, {T, H}),
        d_gamma[2] = {DeviceTensor(random_tensor(DType::f32, {H}, 7)), DeviceTensor(random_tensor(DType::f32, {H}, 7))},
        d_beta(random_tensor(DType::f32, {H}, 8)),
        scratch(bytes_tensor(layer_norm_grad_scratch_bytes(Gpu::stream(), T, H, 1)));
    LayerNormGradArgs grad{.sum = x, .mean = mean, .rstd = rstd, .gamma = gamma, .d_y = with, .d_sum = d_sum};
    grad.scratch = scratch;
    grad.d_gamma = d_gamma[0];
    grad.d_beta = d_beta;
    layer_norm_grad(Gpu::stream(), grad);
    grad.d_gamma = d_gamma[1];
    grad.d_beta = {};
    layer_norm_grad(Gpu::stream(), grad);
    EXPECT_TRUE(same_bits(d_gamma[0].host(), d_gamma[1].host()));
  }
}

// ---- gradients ----
using CudaLayerNormGrad = CudaOps;
TEST_F(CudaLayerNormGrad, MatchesFp64) {
  uint64_t seed = 1;
  for (const DType type : kActivationTypes)
    for (const int64_t H : Gpu::emulated() ? std::vector<int64_t>{8, 384, 768, 1544}
                                           : std::vector<int64_t>{8, 256, 312, 384, 768, 1024, 1536, 3072, 4096})
      for (const int64_t T : {1, 9, 100, Gpu::emulated() ? 150 : H > 384 ? 300 : 3000})
        for (const int way : {0, 1, 2, 3}) {
          const bool plain = way % 2 == 1, from_y = way / 2 == 1;  // else from the sum
          SCOPED_TRACE(::testing::Message()
                       << dtype_name(type) << " T " << T << " H " << H << " plain " << plain << " from y " << from_y);
          const HostTensor sum = random_tensor(type, {T, H}, ++seed, 1, 0.5), d_y = random_tensor(type, {T, H}, ++seed),
                           before = random_tensor(type, {T, H}, ++seed), gamma = random_tensor(type, {H}, ++seed),
                           beta = random_tensor(type, {H}, ++seed), y(type, {T, H});
          gamma.set(2, 0, 0);  // two gains that are not inverted
          gamma.set(3, 0, beta.at(3) / 300);
          const HostTensor mean(DType::f32, {T}), rstd(DType::f32, {T}),
              d_gamma0 = random_tensor(DType::f32, {H}, ++seed), d_beta0 = random_tensor(DType::f32, {H}, ++seed),
              d_bias0 = random_tensor(DType::f32, {H}, ++seed);
          const std::vector<double> sums = sum.values(), uppers = d_y.values(), befores = before.values(),
                                    gammas = gamma.values(),
                                    betas = beta.values();  // plain doubles, because the loops below are long
          const Dropout drop{.probability = plain ? 0.0f : 0.25f, .seed = 4, .site = 2, .first_row = 6};
          std::vector<double> d_sum, d_x, tolerance, d_gamma = d_gamma0.values(), d_beta = d_beta0.values(),
                                                     d_bias = d_bias0.values(), gamma_size(d_gamma.size()),
                                                     beta_size(d_beta.size()), bias_error(d_bias.size());
          const double h = static_cast<double>(H);
          for (int64_t t = 0; t < T; ++t) {
            const double *x = sums.data() + t * H, *up = uppers.data() + t * H, *there = befores.data() + t * H;
            double m = 0, v = 0;
            for (int64_t i = 0; i < H; ++i) m += x[i] / h;
            for (int64_t i = 0; i < H; ++i) v += (x[i] - m) * (x[i] - m) / h;
            mean.set(t, 0, m);
            rstd.set(t, 0, 1 / std::sqrt(v + 1e-5));
            const double row_mean = mean.at(t), row_rstd = rstd.at(t);  // as rounded
            double total = 0, total_x = 0, size = 0, size_x = 0;
            std::vector<double> normals, centres;  // centres: times gamma
            for (int64_t i = 0; i < H; ++i) {
              const double normal = (x[i] - row_mean) * row_rstd;
              y.set(t, i, normal * gammas[i] + betas[i]);
              const bool undone =
                  std::fabs(gammas[i]) >= std::max<double>(kLeastGain, kLeastGainOfOffset * std::fabs(betas[i]));
              centres.push_back(from_y ? y.at(t, i) - betas[i] : normal * gammas[i]);
              normals.push_back(!from_y ? normal : undone ? centres.back() / gammas[i] : 0);
            }
            const auto normal = [&](int64_t i) { return normals[static_cast<size_t>(i)]; };
            const auto centre = [&](int64_t i) { return centres[static_cast<size_t>(i)]; };
            for (int64_t i = 0; i < H; ++i) {
              const double g = up[i] * gammas[i];
              total += g / h;
              size += std::fabs(g) / h;
              total_x += up[i] * centre(i) / h;
              size_x += std::fabs(up[i] * centre(i)) / h;
              d_gamma[i] += up[i] * normal(i);
              gamma_size[i] += std::fabs(up[i]) * (std::fabs(normal(i)) + row_rstd * std::fabs(x[i]));
              d_beta[i] += up[i];
              beta_size[i] += std::fabs(up[i]);
            }
            for (int64_t i = 0; i < H; ++i) {
              const double d = row_rstd * (up[i] * gammas[i] - total - normal(i) * total_x) + (plain ? 0 : there[i]);
              // Sums of H/32 terms and their tree, then a few products: bounded by 24 roundings of the magnitudes.
              const double error =
                  24 * kEps32 *
                  (row_rstd * (std::fabs(up[i] * gammas[i]) + size + (1 + std::fabs(normal(i))) * size_x) +
                   (plain ? 0 : std::fabs(there[i])));
              d_sum.push_back(d);
              tolerance.push_back(error + eps_of(type) * (std::fabs(d) + error) + smallest_of(type));
              d_x.push_back(d * dropout_factor(drop, t, i));
              d_bias[i] += d_x.back();
              bias_error[i] += 1.5 * tolerance.back() + kEps32 * static_cast<double>(T + 16) * std::fabs(d_x.back());
            }
          }
          const DeviceTensor g_sum(sum), g_y(y), g_d_y(d_y), g_before(before), g_gamma(gamma), g_beta(beta),
              g_mean(mean), g_rstd(rstd), g_d_gamma(d_gamma0), g_d_beta(d_beta0), g_d_bias(d_bias0),
              g_d_x(type, {T, H});
          const DeviceTensor scratch(bytes_tensor(layer_norm_grad_scratch_bytes(Gpu::stream(), T, H, 1)));
          LayerNormGradArgs args{.rstd = g_rstd,
                                 .gamma = g_gamma,
                                 .d_y = g_d_y,
                                 .d_sum = plain ? g_d_y : g_before,
                                 .d_gamma = g_d_gamma,
                                 .d_beta = g_d_beta,
                                 .d_bias = g_d_bias,
                                 .scratch = scratch};
          if (from_y) {
            args.y = g_y;
            args.beta = g_beta;
          } else {
            args.sum = g_sum;
            args.mean = g_mean;
          }
          if (!plain) {
            args.d_x = g_d_x;
            args.dropout = drop;
            args.d_sum_write = GradWrite::accumulate;
          }
          layer_norm_grad(Gpu::stream(), args);
          EXPECT_TRUE(close((plain ? g_d_y : g_before).values(), d_sum, [&](size_t i) { return tolerance[i]; }));
          if (!plain) {
            EXPECT_TRUE(close(g_d_x.values(), d_x, [&](size_t i) { return 1.5 * tolerance[i]; }));
          }
          const double steps = static_cast<double>(T) + 16;
          EXPECT_TRUE(close(g_d_gamma.values(), d_gamma, [&](size_t i) {
            return kEps32 * steps * (gamma_size[i] + std::fabs(d_gamma0.at(static_cast<int64_t>(i))));
          }));
          EXPECT_TRUE(close(g_d_beta.values(), d_beta, [&](size_t i) {
            return kEps32 * steps * (beta_size[i] + std::fabs(d_beta0.at(static_cast<int64_t>(i))));
          }));
          EXPECT_TRUE(close(g_d_bias.values(), d_bias, [&](size_t i) {
            return bias_error[i] + kEps32 * steps * std::fabs(d_bias0.at(static_cast<int64_t>(i)));
          }));
        }
}

using CudaEmbeddingGrad = CudaOps;
TEST_F(CudaEmbeddingGrad, AddsRunsInOrder) {
  for (const DType type : kActivationTypes)
    for (const int64_t H : {8, 264, 768})
      for (const int64_t T : {1, 33, 300, 3000}) {  // the last one has runs longer than a block's tokens
        if (T == 3000 && H == 768) continue;
        SCOPED_TRACE(::testing::Message() << dtype_name(type) << " T " << T << " H " << H);
        const int64_t V = 12, P = 40;
        const HostTensor d_sum = random_tensor(type, {T, H}, 1);
        const HostTensor word0 = random_tensor(DType::f32, {V, H}, 2), position0 = random_tensor(DType::f32, {P, H}, 3),
                         type0 = random_tensor(DType::f32, {2, H}, 4);
        std::vector<int32_t> ids, positions, by_id(static_cast<size_t>(T)), by_position;
        for (int64_t t = 0; t < T; ++t) {
          ids.push_back(static_cast<int32_t>(t % 5 == 0 ? 3 : t * t % 11));
          positions.push_back(static_cast<int32_t>(2 + t % 17));
        }
        std::iota(by_id.begin(), by_id.end(), 0);
        by_position = by_id;
        std::stable_sort(by_id.begin(), by_id.end(), [&](int a, int b) { return ids[a] < ids[b]; });
        std::stable_sort(by_position.begin(), by_position.end(),
                         [&](int a, int b) { return positions[a] < positions[b]; });
        std::vector<int32_t> tokens;
        for (int64_t t = 0; t < T; ++t) tokens.push_back(typed(ids[t], t % 3 == 1 ? 1 : 0));
        const DeviceTensor g_d_sum(d_sum), g_ids(int_tensor(tokens)), g_positions(int_tensor(positions)),
            g_by_id(int_tensor(by_id)), g_by_position(int_tensor(by_position)), g_word(word0), g_position(position0),
            g_type(type0), scratch(bytes_tensor(embedding_grad_scratch_bytes(Gpu::stream(), T, H, 2)));
        EmbeddingGradArgs args{.d_sum = g_d_sum,
                               .sorted = g_by_id,
                               .sorted_positions = g_by_position,
                               .d_word = g_word,
                               .d_position = g_position,
                               .d_type = g_type,
                               .scratch = scratch,
                               .padding_id = 1,
                               .position_padding_id = -1};
        args.batch.T = T;
        args.batch.ids = g_ids;
        args.batch.positions = g_positions;
        embedding_grad(Gpu::stream(), args);
        std::vector<double> word = word0.values(), position = position0.values(), kind = type0.values();
        for (int64_t t = 0; t < T; ++t)
          for (int64_t i = 0; i < H; ++i) {
            if (ids[t] != 1) word[static_cast<size_t>(ids[t] * H + i)] += d_sum.at(t, i);
            position[static_cast<size_t>(positions[t] * H + i)] += d_sum.at(t, i);
            kind[static_cast<size_t>((t % 3 == 1 ? H : 0) + i)] += d_sum.at(t, i);
          }
        const double tolerance =
            kEps32 * static_cast<double>(T + 4) * 5 * static_cast<double>(T);  // T roundings of sums below 5 T
        EXPECT_TRUE(close(g_word.values(), word, tolerance));
        EXPECT_TRUE(close(g_position.values(), position, tolerance));
        EXPECT_TRUE(close(g_type.values(), kind, tolerance));
      }
}

}  // namespace
}  // namespace brim::ops
