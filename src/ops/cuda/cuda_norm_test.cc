// SPDX-License-Identifier: Apache-2.0
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

}  // namespace
}  // namespace brim::ops
