// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/testing.h"
#include "ops/gemm_tuner.h"
#include "ops/linear.h"

namespace brim::ops {

using tensor::DType;

namespace {
using namespace brim::ops::testing;

struct Setting {
  Precision precision = Precision::bf16;
  int64_t T = 17, N = 64, K = 96;
  bool bias = true, residual = false, alias = false;
  Activation activation = Activation::none;
  DType y = DType::bf16;
  int64_t x_pad = 0, y_pad = 0;
  bool without_library = false;
};
device::Stream& stream_without_library() {
  static const auto made = [] {
    auto stream = Gpu::device().make_stream();
    spare_gemm_library(*stream);
    return stream;
  }();
  return *made;
}
DType operand_type(Precision p) {
  return p == Precision::bf16   ? DType::bf16
         : p == Precision::fp16 ? DType::f16
         : p == Precision::fp8  ? DType::f8e4m3
                                : DType::f32;
}

HostTensor fp8_tensor(int64_t rows, int64_t cols, uint64_t seed) {
  HostTensor t(DType::f8e4m3, {rows, cols});
  std::mt19937_64 generator(seed);
  auto* bytes = static_cast<uint8_t*>(t.view().data);
  for (int64_t i = 0; i < rows * cols; ++i) {
    do bytes[i] = static_cast<uint8_t>(generator());
    while (std::fabs(fp8_value(bytes[i])) > 8 || std::isnan(fp8_value(bytes[i])));
  }
  return t;
}
// As doubles, without padding between rows.
std::vector<double> values_of(const HostTensor& t) {
  if (t.view().dtype != DType::f8e4m3) return t.values();
  const auto* bytes = static_cast<const uint8_t*>(t.view().data);
  std::vector<double> all;
  for (int64_t i = 0; i < t.rows() * t.cols(); ++i) all.push_back(fp8_value(bytes[i]));
  return all;
}

// Products of half-precision operands are exact in fp32. Tensor cores add with truncation: K additions, each off by at
// most 4 eps of the sum of magnitudes. tf32 keeps 10 bits of each operand; fp8's fast accumulation 14 bits of the
// running sum, once per 32 products. If the library's tanh GELU is used, it differs from the erf form by at most
// 4.8e-4.
void check_linear(const Setting& c) {
  SCOPED_TRACE(::testing::Message() << precision_name(c.precision) << " T " << c.T << " N " << c.N << " K " << c.K
                                    << " bias " << c.bias << " residual " << c.residual << " alias " << c.alias
                                    << " activation " << static_cast<int>(c.activation) << " y " << dtype_name(c.y));
  const DType type = operand_type(c.precision), bias_type = type == DType::f8e4m3 ? DType::bf16 : type;
  const bool fp8 = c.precision == Precision::fp8, to_fp8 = c.y == DType::f8e4m3;
  const HostTensor x = fp8 ? fp8_tensor(c.T, c.K, 1) : random_tensor(type, {c.T, c.K}, 1, 1, 0, c.x_pad),
                   w = fp8 ? fp8_tensor(c.N, c.K, 2) : random_tensor(type, {c.N, c.K}, 2, 0.05);
  const HostTensor bias = random_tensor(bias_type, {c.N}, 3),
                   residual = random_tensor(to_fp8 ? DType::bf16 : c.y, {c.T, c.N}, 4, 1, 0, c.alias ? c.y_pad : 0);
  const double x_scale = fp8 ? 0.125 : 1, w_scale = fp8 ? 0.03125 : 1, y_scale = to_fp8 ? 4 : 1;
  const DeviceTensor dx(x), dw(w), db(bias), dr(residual), y(c.y, {c.T, c.N}, c.y_pad);
  const DeviceTensor dxs(random_tensor(DType::f32, {1}, 1, 0, x_scale)),
      dws(random_tensor(DType::f32, {1}, 1, 0, w_scale)), dys(random_tensor(DType::f32, {1}, 1, 0, y_scale));
  LinearArgs args;
  args.x = dx;
  args.w = {.N = c.N, .K = c.K, .precision = c.precision, .data = dw};
  if (fp8) {
    args.w.scale = dws;
    args.x_scale = dxs;
  }
  if (to_fp8) args.y_scale = dys;
  if (c.bias) args.bias = db;
  if (c.residual) args.residual = dr;
  const DeviceTensor& out = c.alias ? dr : y;
  args.y = out;
  args.scratch = gemm_scratch();
  args.activation = c.activation;
  device::Stream& stream = c.without_library ? stream_without_library() : Gpu::stream();
  linear(stream, args);
  stream.synchronize();

  const std::vector<double> got = out.values();
  for (const double v : got) ASSERT_FALSE(std::isnan(v));
  // Every row of small problems, a sample of large ones.
  std::vector<double> want, actual, tolerance;
  const std::vector<double> xs = values_of(x), ws = values_of(w);
  const int64_t step = std::max<int64_t>(1, c.T * c.N * c.K / 20'000'000);
  for (int64_t t = 0; t < c.T; t += t + step < c.T || t == c.T - 1 ? step : c.T - 1 - t)
    for (int64_t n = 0; n < c.N; ++n) {
      double sum = 0, magnitude = 0;
      for (int64_t k = 0; k < c.K; ++k) {
        const double product = xs[static_cast<size_t>(t * c.K + k)] * ws[static_cast<size_t>(n * c.K + k)];
        sum += product;
        magnitude += std::fabs(product);
      }
      sum *= x_scale * w_scale;
      magnitude *= x_scale * w_scale;
      double error = magnitude * 4 * kEps32 * static_cast<double>(c.K + 8);
      if (c.precision == Precision::tf32) error += 2 * 0x1p-10 * magnitude;
      if (fp8) error += (static_cast<double>(c.K) / 32 + 1) * 0x1p-13 * magnitude;
      if (c.bias) {
        sum += bias.at(n);
        error += 2 * kEps32 * std::fabs(bias.at(n));
      }
      const double before = sum;
      sum = activation64(c.activation, before);
      // No slope is above 1.13. A separate activation pass reads values rounded to y's type.
      const bool is_gelu = c.activation == Activation::gelu || c.activation == Activation::gelu_tanh;
      if (is_gelu && type != DType::f32)
        error = 1.13 * error + 4.8e-4;
      else if (c.activation != Activation::none)
        error = 1.13 * (error + eps_of(c.y) * std::fabs(before)) +
                activation_roundings(c.activation, before) * kEps32 * std::fabs(sum);
      // Values completed by a separate pass are rounded to y's type once in between, and so is a product to which the
      // library adds C.
      if (c.residual) error += eps_of(c.y) * std::fabs(sum) * 1.01;
      if (c.residual) {
        sum += residual.at(t, n);
        error += 2 * kEps32 * std::fabs(residual.at(t, n));
      }
      sum = to_fp8 ? std::clamp(sum * y_scale, -448.0, 448.0) : sum;
      error *= y_scale;
      want.push_back(sum);
      tolerance.push_back(error + eps_of(c.y) * (std::fabs(sum) + error) + smallest_of(c.y));
      actual.push_back(got[static_cast<size_t>(t * c.N + n)]);
    }
  EXPECT_TRUE(close(actual, want, [&](size_t i) { return tolerance[i]; }));
}

std::vector<Precision> precisions() {
  std::vector<Precision> all{Precision::fp32, Precision::fp16};
  const device::CudaInfo& info = cuda_info(Gpu::device());
  if (info.tf32) all.push_back(Precision::tf32);
  if (info.bf16) all.push_back(Precision::bf16);
  if (info.fp8) all.push_back(Precision::fp8);
  return all;
}
DType result_type(Precision p) { return p == Precision::fp8 ? DType::bf16 : operand_type(p); }

using CudaLinear = CudaOps;

TEST_F(CudaLinear, MatchesFp64AtEverySize) {
  for (const Precision p : precisions())
    for (const int64_t T : {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 300}) {
      if (Gpu::emulated() && T > 65) continue;
      check_linear({.precision = p, .T = T, .N = 64, .K = 96, .y = result_type(p)});
    }
}

TEST_F(CudaLinear, MatchesFp64AtModelShapes) {
  if (Gpu::emulated()) GTEST_SKIP() << "too slow on the emulator";
  for (const Precision p : precisions())
    for (const auto& [N, K] : {std::pair<int64_t, int64_t>{768, 768},
                               {2304, 768},
                               {1536, 768},
                               {3072, 768},
                               {768, 3072},
                               {384, 1536},
                               {1024, 4096}})
      for (const int64_t T : {1, 26, 513, 1000})
        check_linear({.precision = p,
                      .T = T,
                      .N = N,
                      .K = K,
                      .activation = N == 3072 ? Activation::gelu : Activation::none,
                      .y = result_type(p)});
}

// Few columns and many rows, on both sides of the number of rows that selects the kernel.
TEST_F(CudaLinear, MatchesFp64AtShapesOfAdapters) {
  if (Gpu::emulated()) GTEST_SKIP() << "too slow on the emulator";
  for (const Precision p : precisions())
    for (const int64_t rank : {8, 16, 24})
      for (const int64_t T : {511, 512, 3000}) {
        if (p == Precision::fp8) continue;
        check_linear({.precision = p, .T = T, .N = rank, .K = 1024, .y = result_type(p)});
        check_linear({.precision = p, .T = T, .N = rank, .K = 64, .y = result_type(p), .y_pad = 8});
        check_linear({.precision = p,
                      .T = T,
                      .N = 768,
                      .K = rank,
                      .residual = true,
                      .alias = true,
                      .y = result_type(p),
                      .y_pad = 16});
      }
}

TEST_F(CudaLinear, FusesEveryEpilogue) {
  for (const Precision p : precisions())
    for (const bool bias : {false, true})
      for (const bool residual : {false, true})
        for (const Activation activation : kEveryActivation) {
          check_linear({.precision = p,
                        .T = 33,
                        .bias = bias,
                        .residual = residual,
                        .activation = activation,
                        .y = result_type(p),
                        .y_pad = 16});
          if (residual && activation == Activation::none)
            check_linear({.precision = p,
                          .T = 33,
                          .bias = bias,
                          .residual = true,
                          .alias = true,
                          .y = result_type(p),
                          .y_pad = 16});
        }
}

TEST_F(CudaLinear, ReadsStridedRows) {
  for (const Precision p : precisions())
    if (p != Precision::fp8) check_linear({.precision = p, .T = 40, .y = result_type(p), .x_pad = 32, .y_pad = 64});
}

TEST_F(CudaLinear, WritesFp8) {
  if (!cuda_info(Gpu::device()).fp8) GTEST_SKIP() << "the GPU has no fp8";
  for (const int64_t T : {16, 17, 33, 100})
    for (const Activation activation : {Activation::none, Activation::gelu, Activation::gelu_tanh})
      check_linear(
          {.precision = Precision::fp8, .T = T, .N = 128, .K = 64, .activation = activation, .y = DType::f8e4m3});
}

TEST_F(CudaLinear, ComputesNarrowHeads) {
  for (const Precision p : {Precision::fp32, Precision::fp16, Precision::bf16})
    for (const int64_t N : {1, 2, 3, 9, 16, 77})
      for (const int64_t K : {8, 96, 100, 768})
        for (const DType y : {operand_type(p), DType::f32})
          for (const Activation activation : {Activation::none, Activation::tanh, Activation::silu})
            if (N < 4 || K != 768 || !Gpu::emulated())
              check_linear(
                  {.precision = p, .T = 5, .N = N, .K = K, .residual = N == 9, .activation = activation, .y = y});
}

TEST_F(CudaLinear, SupportsEverySizeWithoutTheLibrary) {
  for (const Precision p : {Precision::fp16, Precision::bf16}) {
    if (p == Precision::bf16 && !cuda_info(Gpu::device()).bf16) continue;
    for (const auto& [T, N, K] : {std::tuple<int64_t, int64_t, int64_t>{1, 24, 32},
                                  {32, 40, 1024},
                                  {33, 24, 1032},
                                  {64, 24, 104},
                                  {65, 24, 264},
                                  {130, 2304, 40},
                                  {3, 16, 3072},
                                  {9, 24, 4096}})
      for (const Activation activation : {Activation::none, Activation::gelu, Activation::tanh})
        check_linear({.precision = p,
                      .T = T,
                      .N = N,
                      .K = K,
                      .residual = activation == Activation::none,
                      .activation = activation,
                      .y = result_type(p),
                      .x_pad = 8,
                      .y_pad = 2,
                      .without_library = true});
  }
}

TEST_F(CudaLinear, DoesNothingForZeroRows) { check_linear({.precision = Precision::fp16, .T = 0, .y = DType::f16}); }

TEST_F(CudaLinear, TunedAlgorithmsMatchAndAreReproducible) {
  if (Gpu::emulated()) GTEST_SKIP() << "there is no library to tune";
  const int64_t T = 4096, N = 768, K = 768;
  const DType type = cuda_info(Gpu::device()).bf16 ? DType::bf16 : DType::f16;
  const DeviceTensor x(random_tensor(type, {T, K}, 1)), w(random_tensor(type, {N, K}, 2, 0.05)), y(type, {T, N}),
      again(type, {T, N});
  LinearArgs args{.x = x, .y = y, .scratch = gemm_scratch()};
  args.w = {.N = N, .K = K, .precision = type == DType::bf16 ? Precision::bf16 : Precision::fp16, .data = w};
  const GemmChoice choice = tune_linear(Gpu::stream(), args, 0.5);
  EXPECT_FALSE(choice.key.empty());
  EXPECT_EQ(choice.algorithm.size(), 128u);
  EXPECT_GT(choice.us, 0);
  EXPECT_LE(choice.us, choice.default_us * 1.02);
  linear(Gpu::stream(), args);
  // The same choices restored, as by a plan, give the same bits.
  use_gemm_choices(Gpu::stream(), gemm_choices(Gpu::stream()));
  args.y = again;
  linear(Gpu::stream(), args);
  EXPECT_TRUE(same_bits(y.host(), again.host()));
  check_linear({.precision = args.w.precision, .T = 4000, .N = N, .K = K, .bias = false, .y = type});
}

TEST_F(CudaLinear, TunedFp8ResultsMatchUntunedOnes) {
  if (Gpu::emulated()) GTEST_SKIP() << "there is no library to tune";
  if (!cuda_info(Gpu::device()).fp8) GTEST_SKIP() << "the GPU has no fp8";
  const int64_t T = 2048, N = 1024, K = 256;
  const HostTensor values = fp8_tensor(T, K, 1);
  const DeviceTensor x(values), again(values), w(fp8_tensor(N, K, 2)), bias(random_tensor(DType::bf16, {N}, 3)),
      y(DType::f8e4m3, {T, N}), operand_scale(random_tensor(DType::f32, {1}, 1, 0, 0.25)),
      y_scale(random_tensor(DType::f32, {1}, 1, 0, 4));
  LinearArgs args{.x = x, .bias = bias, .y = y, .scratch = gemm_scratch(), .x_scale = operand_scale};
  args.w = {.N = N, .K = K, .precision = Precision::fp8, .data = w, .scale = operand_scale};
  args.y_scale = y_scale;
  args.activation = Activation::gelu;
  linear(Gpu::stream(), args);
  const std::vector<double> plain = y.values();
  EXPECT_FALSE(tune_linear(Gpu::stream(), args, 0.3).key.empty());  // overwrites x with its own values
  args.x = again;
  linear(Gpu::stream(), args);
  const std::vector<double> tuned = y.values();
  EXPECT_LE(product_distance({plain.begin(), plain.end()}, {tuned.begin(), tuned.end()}), 0.05);
}

}  // namespace
}  // namespace brim::ops
