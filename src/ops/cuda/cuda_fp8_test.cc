// SPDX-License-Identifier: Apache-2.0
// Conversions to fp8 and the products of fp8 training, compared with fp64.
#include "ops/amax.h"
#include "ops/cuda/testing.h"
#include "ops/fp8_cast.h"
#include "ops/fp8_code.h"
#include "ops/layer_norm.h"
#include "ops/linear.h"

namespace brim::ops {

using tensor::DType;

namespace {
using namespace brim::ops::testing;

class CudaFp8 : public CudaOps {
 protected:
  void SetUp() override {
    CudaOps::SetUp();
    if (!IsSkipped() && !cuda_info(Gpu::device()).fp8) GTEST_SKIP() << "the GPU has no fp8";
  }
};

struct CastSetting {
  int64_t T = 130, C = 80;
  Activation activation = Activation::none;
  bool slope = false, rows = true, columns = true, sums = false;
  int64_t pad = 0;
};

// bf16 input, fp32 arithmetic: a code may differ by one only if the value is that close to the midpoint of two.
void check_cast(const CastSetting& c) {
  SCOPED_TRACE(::testing::Message() << "T " << c.T << " C " << c.C << " activation " << static_cast<int>(c.activation)
                                    << " slope " << c.slope << " rows " << c.rows << " columns " << c.columns
                                    << " sums " << c.sums << " pad " << c.pad);
  const int64_t P = fp8_columns(c.T);
  const HostTensor x = random_tensor(DType::bf16, {c.T, c.C}, 1, 2, 0, c.pad),
                   gate = random_tensor(DType::bf16, {c.T, c.C}, 2, 2, 0, c.pad),
                   zero = random_tensor(DType::f32, {1}, 1, 0), scale = random_tensor(DType::f32, {1}, 1, 0, 40),
                   begun = random_tensor(DType::f32, {c.C}, 3);
  const DeviceTensor dx(x), dg(gate), rows(DType::f8e4m3, {c.T, c.C}), columns(DType::f8e4m3, {c.C, P}), ds(scale),
      inverse(DType::f32, {1}), most(zero), sums(begun);
  const DeviceTensor scratch(bytes_tensor(fp8_cast_scratch_bytes(Gpu::stream(), c.T, c.C)));
  Fp8CastArgs args{.x = dx, .scale = ds, .inverse = inverse, .amax = most};
  if (c.slope) args.gate = dg;
  if (c.rows) args.rows = rows;
  if (c.columns) args.columns = columns;
  if (c.sums) {
    args.d_bias = sums;
    args.scratch = scratch;
  }
  args.activation = c.activation;
  fp8_cast(Gpu::stream(), args);
  const std::vector<double> by_row = rows.values(), by_column = columns.values(), got_sums = sums.values();
  double largest = 0;
  std::vector<double> want, got, tolerance;
  for (int64_t k = 0; k < c.C; ++k) {
    double sum = begun.at(k), magnitude = std::fabs(sum);
    for (int64_t t = 0; t < P; ++t) {
      const double in_column = c.columns ? by_column[static_cast<size_t>(k * P + t)] : 0;
      if (t >= c.T) {
        ASSERT_EQ(in_column, 0) << "beyond the tokens";
        continue;
      }
      const double v =
          c.slope ? x.at(t, k) * slope64(c.activation, gate.at(t, k)) : activation64(c.activation, x.at(t, k));
      const double scaled = std::clamp(v * 40, -448.0, 448.0);
      for (const auto& [there, value] :
           {std::pair(c.rows, by_row[static_cast<size_t>(t * c.C + k)]), {c.columns, in_column}}) {
        if (!there) continue;
        want.push_back(scaled);
        got.push_back(value);
        tolerance.push_back(std::max(0x1p-4 * std::fabs(scaled), 0x1p-10) * 1.0001 + 40 * 4e-6);
      }
      if (c.rows && c.columns) {
        ASSERT_EQ(by_row[static_cast<size_t>(t * c.C + k)], in_column);
      }
      largest = std::max(largest, std::fabs(v));
      sum += v;
      magnitude += std::fabs(v);
    }
    if (c.sums) {
      want.push_back(sum);
      got.push_back(got_sums[static_cast<size_t>(k)]);
      tolerance.push_back((static_cast<double>(c.T) * kEps32 + 2e-6) * magnitude);
    }
  }
  EXPECT_TRUE(close(got, want, [&](size_t i) { return tolerance[i]; }));
  EXPECT_NEAR(most.values()[0], largest, 1e-5 * largest);
  EXPECT_EQ(inverse.values()[0], static_cast<double>(1.0f / 40.0f));
}

TEST_F(CudaFp8, CastsEverySizeAroundItsTiles) {
  for (const int64_t T : {1, 15, 16, 17, 127, 128, 129, 300})
    for (const int64_t C : {16, 48, 64, 80, 144}) {
      if (Gpu::emulated() && T * C > 20000) continue;
      check_cast({.T = T, .C = C, .sums = true, .pad = 16});
    }
  check_cast({.rows = false});
  check_cast({.columns = false});
}

TEST_F(CudaFp8, CastsEveryActivationAndSlope) {
  for (const Activation activation : kEveryActivation)
    for (const bool slope : {false, true})
      check_cast({.T = 50, .C = 64, .activation = activation, .slope = slope, .sums = slope});
}

TEST_F(CudaFp8, CastsMoreTilesThanBlocks) {
  if (Gpu::emulated()) GTEST_SKIP() << "too many tiles for the emulator";
  check_cast({.T = 256 * 128 * 2 + 133, .C = 64, .activation = Activation::gelu, .slope = true, .sums = true});
}

TEST_F(CudaFp8, PropagatesANonFiniteMaximum) {
  const HostTensor x = random_tensor(DType::bf16, {20, 16}, 1);
  x.set(17, 3, std::nan(""));
  const DeviceTensor dx(x), rows(DType::f8e4m3, {20, 16}), scale(random_tensor(DType::f32, {1}, 1, 0, 1)),
      most(random_tensor(DType::f32, {1}, 1, 0));
  fp8_cast(Gpu::stream(), {.x = dx, .rows = rows, .scale = scale, .amax = most});
  EXPECT_TRUE(std::isinf(most.values()[0]));
}

// Matrices of several sizes, smaller and larger than a tile, in one call: same results as individually.
TEST_F(CudaFp8, CastsAllMatricesOfAModel) {
  constexpr std::pair<int64_t, int64_t> kSizes[] = {{16, 16}, {144, 80}, {128, 64}, {48, 208}, {272, 16}};
  constexpr int64_t n = std::size(kSizes);
  std::vector<DeviceTensor> x, rows, columns;
  std::vector<Fp8MatrixPlace> places;
  int64_t tiles = 0, elements = 0;
  for (const auto& [N, K] : kSizes) {
    x.emplace_back(random_tensor(DType::bf16, {N, K}, static_cast<uint64_t>(N * K), 0.1));
    rows.emplace_back(DType::f8e4m3, std::initializer_list<int64_t>{N, K});
    columns.emplace_back(DType::f8e4m3, std::initializer_list<int64_t>{K, N});
    places.push_back({.x = x.back().view().data,
                      .rows = static_cast<uint8_t*>(rows.back().view().data),
                      .columns = static_cast<uint8_t*>(columns.back().view().data),
                      .N = static_cast<int32_t>(N),
                      .K = static_cast<int32_t>(K),
                      .first_tile = static_cast<int32_t>(tiles)});
    tiles += fp8_tiles(N, K);
    elements += N * K;
  }
  const HostTensor list = bytes_tensor(n * static_cast<int64_t>(sizeof(Fp8MatrixPlace)));
  std::memcpy(list.view().data, places.data(), static_cast<size_t>(list.view().bytes()));
  const DeviceTensor d_list(list), most(random_tensor(DType::f32, {n}, 1, 1, 50)), scale(DType::f32, {n}),
      inverse(DType::f32, {n, 1});
  fp8_cast_matrices(
      Gpu::stream(),
      {.places = d_list, .amax = most, .scale = scale, .inverse = inverse, .tiles = tiles, .elements = elements});
  for (size_t i = 0; i < n; ++i) {
    const auto [N, K] = kSizes[i];
    SCOPED_TRACE(::testing::Message() << N << " x " << K);
    const DeviceTensor one(random_tensor(DType::f32, {1}, 1, 0)), by(DType::f32, {1}), r(DType::f8e4m3, {N, K}),
        c(DType::f8e4m3, {K, N});
    amax(Gpu::stream(), {.x = x[i], .amax = one});
    fp8_scale(Gpu::stream(), {.amax = one, .scale = by});
    fp8_cast(Gpu::stream(), {.x = x[i], .rows = r, .columns = c, .scale = by});
    EXPECT_EQ(most.values()[i], one.values()[0]);
    EXPECT_EQ(scale.values()[i], by.values()[0]);
    EXPECT_EQ(inverse.values()[i], static_cast<double>(1.0f / static_cast<float>(by.values()[0])));
    EXPECT_EQ(rows[i].values(), r.values());
    EXPECT_EQ(columns[i].values(), c.values());
  }
}

// Copies written by the op itself and by a separate pass over the same tensor have the same bytes. Sizes around the
// tiles of 32 rows and 16 columns, and rows too long for a warp, which fall back to the separate pass.
struct NormCopies {
  int64_t T = 0, H = 0;
  DeviceTensor rows, columns, scale, most;
  NormCopies(int64_t T_, int64_t H_)
      : T(T_),
        H(H_),
        rows(DType::f8e4m3, {T_, H_}),
        columns(DType::f8e4m3, {H_, fp8_columns(T_)}),
        scale(random_tensor(DType::f32, {1}, 1, 0, 57)),
        most(random_tensor(DType::f32, {1}, 1, 0, 0.001)) {}
  Fp8Copy wanted() const { return {rows, columns, scale, most}; }

  void expect_of(const TensorView& x) const {
    const NormCopies plain(T, H);
    fp8_cast(Gpu::stream(),
             {.x = x, .rows = plain.rows, .columns = plain.columns, .scale = plain.scale, .amax = plain.most});
    EXPECT_EQ(rows.values(), plain.rows.values());
    EXPECT_EQ(columns.values(), plain.columns.values());
    EXPECT_EQ(most.values(), plain.most.values());
  }
};
constexpr std::pair<int64_t, int64_t> kNormCopySizes[] = {{1, 16},    {15, 64},   {16, 256}, {17, 272},
                                                          {32, 768},  {33, 784},  {70, 48},  {300, 32},
                                                          {49, 1024}, {20, 1040}, {8300, 16}};

TEST_F(CudaFp8, NormsCopyTheirStoredOutput) {
  for (const auto& [T, H] : kNormCopySizes) {
    SCOPED_TRACE(::testing::Message() << "T " << T << " H " << H);
    const DeviceTensor x(random_tensor(DType::bf16, {T, H}, 1)), residual(random_tensor(DType::bf16, {T, H}, 2)),
        gamma(random_tensor(DType::bf16, {H}, 3)), beta(random_tensor(DType::bf16, {H}, 4)), y(DType::bf16, {T, H}),
        y_alone(DType::bf16, {T, H}), sum(DType::bf16, {T, H}), mean(DType::f32, {T}), rstd(DType::f32, {T});
    LayerNormArgs args{.x = x, .residual = residual, .gamma = gamma, .beta = beta, .y = y, .sum = sum};
    args.mean = mean;
    args.rstd = rstd;
    args.dropout.probability = 0.1f;
    args.dropout.seed = 7;
    const NormCopies copies(T, H), rows_alone(T, H);
    args.train_fp8 = copies.wanted();
    layer_norm(Gpu::stream(), args);
    copies.expect_of(y);
    args.train_fp8 = {};
    args.y = y_alone;
    layer_norm(Gpu::stream(), args);
    EXPECT_EQ(y.values(), y_alone.values());
    args.train_fp8 = rows_alone.wanted();
    args.train_fp8.columns = {};
    args.train_fp8.amax = {};
    layer_norm(Gpu::stream(), args);
    EXPECT_EQ(rows_alone.rows.values(), copies.rows.values());
  }
}

TEST_F(CudaFp8, NormGradientsCopyTheirStoredOutput) {
  for (const auto& [T, H] : kNormCopySizes)
    for (const int way : {0, 1, 2, 3}) {
      const bool dropped = way % 2 == 1, from_y = way / 2 == 1;
      SCOPED_TRACE(::testing::Message() << "T " << T << " H " << H << " dropped " << dropped << " from y " << from_y);
      const HostTensor begun = random_tensor(DType::f32, {H}, 9), before = random_tensor(DType::bf16, {T, H}, 8);
      const DeviceTensor sum(random_tensor(DType::bf16, {T, H}, 1)), d_y(random_tensor(DType::bf16, {T, H}, 2)),
          gamma(random_tensor(DType::bf16, {H}, 3, 0.2, 1)), mean(random_tensor(DType::f32, {T}, 4, 0.1)),
          rstd(random_tensor(DType::f32, {T}, 5, 0.1, 1)),
          scratch(bytes_tensor(layer_norm_grad_scratch_bytes(Gpu::stream(), T, H, 1)));
      const auto run = [&](const Fp8Copy& wanted, const DeviceTensor& d_sum, const TensorView& d_x) {
        const DeviceTensor d_gamma(begun), d_beta(begun), d_bias(begun);
        LayerNormGradArgs args{.rstd = rstd, .gamma = gamma, .d_y = d_y, .d_sum = d_sum};
        (from_y ? args.y : args.sum) = sum;
        if (!from_y) args.mean = mean;
        args.d_gamma = d_gamma;
        args.d_beta = d_beta;
        args.d_bias = d_bias;
        args.scratch = scratch;
        args.train_fp8 = wanted;
        if (dropped) {
          args.d_x = d_x;
          args.d_sum_write = GradWrite::accumulate;
          args.dropout.probability = 0.1f;
          args.dropout.seed = 7;
        }
        layer_norm_grad(Gpu::stream(), args);
        std::vector<double> sums;
        for (const DeviceTensor* t : {&d_gamma, &d_beta, &d_bias})
          for (const double v : t->values()) sums.push_back(v);
        return sums;
      };
      const DeviceTensor d_sum(before), d_x(DType::bf16, {T, H}), d_sum_alone(before), d_x_alone(DType::bf16, {T, H});
      const NormCopies copies(T, H);
      const std::vector<double> sums = run(copies.wanted(), d_sum, d_x), alone = run({}, d_sum_alone, d_x_alone);
      copies.expect_of(dropped ? d_x : d_sum);
      EXPECT_EQ(d_sum.values(), d_sum_alone.values());
      if (dropped) {
        EXPECT_EQ(d_x.values(), d_x_alone.values());
      }
      if (dropped && !layer_norm_grad_stores_d_x(Gpu::stream(), DType::bf16, H)) {
        const DeviceTensor again(before);
        const NormCopies unstored(T, H);
        EXPECT_EQ(run(unstored.wanted(), again, {}), sums);
        EXPECT_EQ(unstored.rows.values(), copies.rows.values());
        EXPECT_EQ(unstored.columns.values(), copies.columns.values());
        EXPECT_EQ(again.values(), d_sum.values());
      }
      // The same terms, of mean magnitude below 10, in another order; no chain of additions is longer than 160.
      const auto terms = static_cast<double>(T);
      EXPECT_TRUE(close(sums, alone, 2 * std::min(2 * terms, 160.0) * kEps32 * 10 * terms));
    }
}

// All three products of a layer, from bf16 tensors: compared with fp64 products of the decoded values, within the
// rounding of the sums; and with products of the tensors themselves, within a sixteenth of each operand.
TEST_F(CudaFp8, GradientsMatchFp64) {
  for (const int64_t T : {5, 48, 131, 1000}) {
    if (Gpu::emulated() && T > 131) continue;
    constexpr int64_t N = 96, K = 64;
    SCOPED_TRACE(T);
    const int64_t P = fp8_columns(T);
    struct Operand {
      HostTensor x;
      DeviceTensor rows, columns, inverse;
      double scale;
      Operand(int64_t r, int64_t c, uint64_t seed, double size, double by)
          : x(random_tensor(DType::bf16, {r, c}, seed, size)),
            rows(DType::f8e4m3, {r, c}),
            columns(DType::f8e4m3, {c, fp8_columns(r)}),
            inverse(DType::f32, {1}),
            scale(by) {
        const DeviceTensor dx(x), s(random_tensor(DType::f32, {1}, 1, 0, by));
        fp8_cast(Gpu::stream(), {.x = dx, .rows = rows, .columns = columns, .scale = s, .inverse = inverse});
        Gpu::stream().synchronize();
      }
      double code(int64_t i) const { return code_values[static_cast<size_t>(i)] / scale; }
      std::vector<double> code_values;
    };
    Operand x(T, K, 1, 1, 64), w(N, K, 2, 0.05, 1024), d(T, N, 3, 1e-4, 262144);
    for (Operand* o : {&x, &w, &d}) o->code_values = o->rows.values();
    const HostTensor residual = random_tensor(DType::bf16, {T, K}, 4, 1e-4),
                     begun = random_tensor(DType::f32, {N, K}, 5, 1e-3);
    const DeviceTensor d_x(residual), d_w(begun);
    LinearArgs input{.x = d.rows, .y = d_x};
    input.w = {.N = K, .K = N, .precision = Precision::fp8, .data = w.columns, .scale = w.inverse};
    input.residual = d_x;
    input.x_scale = d.inverse;
    input.scratch = gemm_scratch();
    input.role = LinearRole::input_gradient;
    linear(Gpu::stream(), input);
    LinearArgs weight{.x = d.columns, .y = d_w};
    weight.w = {.N = K, .K = P, .precision = Precision::fp8, .data = x.columns, .scale = x.inverse};
    weight.residual = d_w;
    weight.x_scale = d.inverse;
    weight.scratch = gemm_scratch();
    weight.role = LinearRole::weight_gradient;
    linear(Gpu::stream(), weight);
    const std::vector<double> got_x = d_x.values(), got_w = d_w.values();
    std::vector<double> got, want, tolerance;
    const auto compare = [&](double value, double before, double sum, double real, double magnitude, int64_t terms,
                             double eps) {
      const double rounding = 4 * kEps32 * static_cast<double>(terms + 8) * magnitude + 0x1p-13 * magnitude;
      got.push_back(value);
      want.push_back(before + sum);
      tolerance.push_back(rounding + 2 * eps * (std::fabs(before) + std::fabs(sum) + rounding));
      got.push_back(value);
      want.push_back(before + real);
      tolerance.push_back(tolerance.back() + magnitude * (2.2 * 0x1p-4));
    };
    for (int64_t t = 0; t < T; ++t)
      for (int64_t k = 0; k < K; ++k) {
        double sum = 0, real = 0, magnitude = 0;
        for (int64_t n = 0; n < N; ++n) {
          sum += d.code(t * N + n) * w.code(n * K + k);
          real += d.x.at(t, n) * w.x.at(n, k);
          magnitude += std::fabs(d.code(t * N + n) * w.code(n * K + k)) + 2e-8;
        }
        compare(got_x[static_cast<size_t>(t * K + k)], residual.at(t, k), sum, real, magnitude, N, kEpsBf16);
      }
    for (int64_t n = 0; n < N; ++n)
      for (int64_t k = 0; k < K; ++k) {
        double sum = 0, real = 0, magnitude = 0;
        for (int64_t t = 0; t < T; ++t) {
          sum += d.code(t * N + n) * x.code(t * K + k);
          real += d.x.at(t, n) * x.x.at(t, k);
          magnitude += std::fabs(d.code(t * N + n) * x.code(t * K + k)) + 2e-8;
        }
        compare(got_w[static_cast<size_t>(n * K + k)], begun.at(n, k), sum, real, magnitude, T, kEps32);
      }
    EXPECT_TRUE(close(got, want, [&](size_t i) { return tolerance[i]; }));
  }
}

}  // namespace
}  // namespace brim::ops
