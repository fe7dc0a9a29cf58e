// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/testing.h"
#include "ops/int8.h"
#include "ops/linear.h"
#include "ops/rows.h"

namespace brim::ops {

using tensor::DType;

namespace {
using namespace brim::ops::testing;

constexpr double kInfinity = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();

HostTensor random_codes(int64_t rows, int64_t cols, uint64_t seed, int64_t pad = 0) {
  HostTensor t(DType::i8, {rows, cols}, pad);
  std::mt19937_64 generator(seed);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c)
      t.as<int8_t>()[r * t.view().ld() + c] = static_cast<int8_t>(static_cast<int>(generator() % 255) - 127);
  return t;
}
HostTensor random_scales(std::initializer_list<int64_t> dims, uint64_t seed, double most) {
  HostTensor t(DType::f32, dims);
  std::mt19937_64 generator(seed);
  std::uniform_real_distribution<double> uniform(most / 4, most);
  for (int64_t r = 0; r < t.rows(); ++r)
    for (int64_t c = 0; c < t.cols(); ++c) t.set(r, c, uniform(generator));
  return t;
}

struct Setting {
  int64_t T = 17, N = 64, K = 96;
  DType type = DType::f16;
  bool bias = true, residual = false, blocks = false, codes = false;
  Activation activation = Activation::none;
  int64_t x_pad = 0, y_pad = 0;
};

// A product's tensors on the device, and its exact result with the rounding errors allowed before it is stored.
struct Product {
  explicit Product(const Setting& setting)
      : c(setting),
        x(random_codes(c.T, c.K, 1, c.x_pad)),
        w(random_codes(c.N, c.K, 2)),
        x_scale(c.blocks ? random_scales({int8_blocks(c.K), c.T}, 3, 0.03) : random_scales({c.T}, 3, 0.03)),
        w_scale(random_scales({c.N}, 4, 0.001)),
        bias(random_tensor(c.type, {c.N}, 5)),
        residual(random_tensor(c.type, {c.T, c.N}, 6)) {}

  // Integer sums are exact. Sums of blocks are added to multiples of 1.5 · 2²³, which are subtracted after four blocks:
  // five roundings of both, and three of the sum of four scales.
  void expect_value(int64_t t, int64_t n, double& value, double& error) const {
    double sum = 0, magnitude = 0, origin = 0;
    for (int64_t k = 0; k < c.K; k += kInt8Block) {
      double part = 0;
      for (int64_t i = k; i < std::min(c.K, k + kInt8Block); ++i) part += x.at(t, i) * w.at(n, i);
      const double scale = c.blocks ? x_scale.at(k / kInt8Block, t) : x_scale.at(t);
      origin += 12582912 * scale;
      part *= scale;
      sum += part;
      magnitude += std::fabs(part);
    }
    sum *= w_scale.at(n);
    magnitude *= w_scale.at(n);
    origin *= w_scale.at(n);
    const auto blocks = static_cast<double>(int8_blocks(c.K));
    error = (c.blocks ? 9 * origin + (2 * blocks + 8) * magnitude : 4 * std::fabs(sum)) * kEps32;
    if (c.bias) {
      sum += bias.at(n);
      error += 2 * kEps32 * (std::fabs(bias.at(n)) + std::fabs(sum));
    }
    value = activation64(c.activation, sum);
    // No slope is above 1.13. GELU for results of 16 bits is accurate to 4e-7, its tanh form to 4.8e-4.
    const double roundings = activation_roundings(c.activation, sum) * kEps32 + 8e-7;
    error = 1.13 * error + roundings * std::fabs(value);
    if (c.codes) error += 4.8e-4 + 0x1p-11 * std::fabs(sum);
    if (c.residual) {
      value += residual.at(t, n);
      error += 2 * kEps32 * (std::fabs(residual.at(t, n)) + std::fabs(value));
    }
  }
  LinearArgs args() const {
    LinearArgs a{.x = dx, .y = y, .x_scale = dxs, .activation = c.activation};
    a.w = {.N = c.N, .K = c.K, .precision = Precision::int8, .data = dw, .scale = dws};
    if (c.bias) a.bias = db;
    if (c.residual) a.residual = dr;
    if (c.codes) a.y_scale = y_scale;
    return a;
  }

  Setting c;
  HostTensor x, w, x_scale, w_scale, bias, residual;
  DeviceTensor dx{x}, dw{w}, dxs{x_scale}, dws{w_scale}, db{bias}, dr{residual};
  DeviceTensor y{c.codes ? DType::i8 : c.type, {c.T, c.N}, c.y_pad};
  DeviceTensor y_scale{DType::f32, {int8_blocks(c.N), c.T}};
};

// A code is within half a step of the value, and the step is the block's largest magnitude / 127.
void check_codes(const Product& p) {
  const HostTensor codes = p.y.host(), scales = p.y_scale.host();
  for (int64_t t = 0; t < p.c.T; ++t)
    for (int64_t n0 = 0; n0 < p.c.N; n0 += kInt8Block) {
      const double scale = scales.at(n0 / kInt8Block, t);
      double most = 0, most_error = 0;
      for (int64_t n = n0; n < std::min(p.c.N, n0 + kInt8Block); ++n) {
        double value, error;
        p.expect_value(t, n, value, error);
        most = std::max(most, std::fabs(value));
        most_error = std::max(most_error, error);
        ASSERT_LE(std::fabs(codes.at(t, n) * scale - value), scale * (0.5 + 127 * 4 * kEps32) + error)
            << "row " << t << " column " << n;
      }
      ASSERT_NEAR(scale, most / 127, (most_error + 4 * kEps32 * most) / 127) << "row " << t << " column " << n0;
    }
}

void check_product(const Setting& c) {
  SCOPED_TRACE(::testing::Message() << "T " << c.T << " N " << c.N << " K " << c.K << " bias " << c.bias << " residual "
                                    << c.residual << " blocks " << c.blocks << " codes " << c.codes << " activation "
                                    << static_cast<int>(c.activation) << " " << dtype_name(c.type));
  const Product p(c);
  linear(Gpu::stream(), p.args());
  Gpu::stream().synchronize();
  if (c.codes) return check_codes(p);
  std::vector<double> want, tolerance;
  for (int64_t t = 0; t < c.T; ++t)
    for (int64_t n = 0; n < c.N; ++n) {
      double value, error;
      p.expect_value(t, n, value, error);
      want.push_back(value);
      tolerance.push_back(error + eps_of(c.type) * (std::fabs(value) + error) + smallest_of(c.type));
    }
  EXPECT_TRUE(close(p.y.values(), want, [&](size_t i) { return tolerance[i]; }));
}

// Every kind of kernel: one scale per row, several, and an int8 result.
void check_kinds(Setting c) {
  check_product(c);
  c.blocks = true;
  check_product(c);
  c.blocks = false;
  c.codes = true;
  c.activation = Activation::gelu;
  check_product(c);
}

std::vector<DType> half_types() {
  if (cuda_info(Gpu::device()).bf16) return {DType::f16, DType::bf16};
  return {DType::f16};
}

using CudaInt8 = CudaOps;

TEST_F(CudaInt8, ProductsMatchFp64AtEverySize) {
  for (const int64_t T : {1, 2, 15, 17, 63, 64, 65, 127, 128, 129, 300})
    for (const auto& [N, K] : {std::pair<int64_t, int64_t>{64, 96}, {16, 16}, {144, 272}})
      if (!Gpu::emulated() || (T < 66 && N < 144) || T == 17) check_kinds({.T = T, .N = N, .K = K});
}

// Enough tiles for the large kernels, with parts at both edges.
TEST_F(CudaInt8, ProductsOfManyRowsMatchFp64) {
  check_kinds({.T = 130, .N = 272, .K = 144});
  if (Gpu::emulated()) return;
  for (const DType type : half_types()) {
    check_kinds({.T = 2500, .N = 1040, .K = 400, .type = type});
    check_kinds({.T = 3001, .N = 768, .K = 768, .type = type, .x_pad = 16, .y_pad = 16});
  }
}

TEST_F(CudaInt8, ProductsFuseEveryEpilogue) {
  for (const DType type : half_types())
    for (const bool bias : {false, true}) {
      for (const Activation activation : kEveryActivation)
        check_product({.T = 33, .type = type, .bias = bias, .activation = activation});
      for (const Activation activation : {Activation::gelu, Activation::gelu_tanh})
        check_product({.T = 33, .type = type, .bias = bias, .codes = true, .activation = activation});
      for (const bool blocks : {false, true})
        check_product({.T = 33, .K = 192, .type = type, .bias = bias, .residual = true, .blocks = blocks});
    }
}

TEST_F(CudaInt8, ProductsReadAndWriteStridedRows) { check_kinds({.T = 40, .x_pad = 32, .y_pad = 64}); }

TEST_F(CudaInt8, ProductOfNoRowsDoesNothing) { check_product({.T = 0}); }

// A row whose scale is not finite has no finite result, and does not affect the others.
TEST_F(CudaInt8, ProductsKeepRowsThatAreNotFinite) {
  for (const double bad : {kNan, kInfinity})
    for (const bool codes : {false, true})
      for (const bool blocks : {false, true}) {
        if (codes && blocks) continue;
        const Activation activation = codes ? Activation::gelu : Activation::none;
        Product p({.T = 20, .N = 48, .K = 144, .blocks = blocks, .codes = codes, .activation = activation});
        blocks ? p.x_scale.set(2, 7, bad) : p.x_scale.set(7, 0, bad);
        const DeviceTensor scale(p.x_scale);
        LinearArgs args = p.args();
        args.x_scale = scale;
        linear(Gpu::stream(), args);
        Gpu::stream().synchronize();
        const HostTensor y = p.y.host(), scales = p.y_scale.host();
        for (int64_t t = 0; t < p.c.T; ++t)
          for (int64_t n = 0; n < p.c.N; ++n)
            EXPECT_EQ(std::isfinite(y.at(t, n) * (codes ? scales.at(0, t) : 1)), t != 7)
                << bad << " row " << t << " column " << n << " codes " << codes << " blocks " << blocks;
      }
}

void check_quantised(const HostTensor& x) {
  const DeviceTensor dx(x), y(DType::i8, {x.rows(), x.cols()}), scale(DType::f32, {x.rows()});
  convert(Gpu::stream(), {.x = dx, .y = y, .scale = scale});
  Gpu::stream().synchronize();
  const HostTensor codes = y.host(), scales = scale.host();
  for (int64_t t = 0; t < x.rows(); ++t) {
    double most = 0;
    for (int64_t i = 0; i < x.cols(); ++i) most = std::max(most, std::fabs(x.at(t, i)));
    ASSERT_NEAR(scales.at(t), most / 127, 2 * kEps32 * most / 127);
    for (int64_t i = 0; i < x.cols(); ++i)
      ASSERT_LE(std::fabs(codes.at(t, i) * scales.at(t) - x.at(t, i)), scales.at(t) * (0.5 + 127 * 4 * kEps32));
  }
}

TEST_F(CudaInt8, ConvertRoundsToTheNearestCode) {
  for (const DType type : kActivationTypes)
    for (const auto& [T, C] : {std::pair<int64_t, int64_t>{1, 8}, {3, 5}, {9, 264}, {17, 768}, {40, 33}}) {
      SCOPED_TRACE(::testing::Message() << dtype_name(type) << " " << T << " x " << C);
      check_quantised(random_tensor(type, {T, C}, 1, 3));
    }
}

TEST_F(CudaInt8, ConvertKeepsZerosAndValuesThatAreNotFinite) {
  const HostTensor x = random_tensor(DType::f16, {4, 64}, 1);
  for (int64_t i = 0; i < 64; ++i) x.set(1, i, 0);
  x.set(2, 5, kNan);
  x.set(3, 63, -kInfinity);
  const DeviceTensor dx(x), y(DType::i8, {4, 64}), scale(DType::f32, {4});
  convert(Gpu::stream(), {.x = dx, .y = y, .scale = scale});
  Gpu::stream().synchronize();
  const HostTensor codes = y.host(), scales = scale.host();
  EXPECT_TRUE(std::isfinite(scales.at(0)));
  EXPECT_EQ(scales.at(1), 0);
  for (int64_t i = 0; i < 64; ++i) EXPECT_EQ(codes.at(1, i), 0);
  EXPECT_TRUE(std::isnan(scales.at(2)));
  EXPECT_EQ(scales.at(3), kInfinity);
}

}  // namespace
}  // namespace brim::ops
