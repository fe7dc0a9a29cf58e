// SPDX-License-Identifier: Apache-2.0
// linear_grad compared with fp64 sums, for every instruction set, precision and thread count, and with finite
// differences of linear.
#include <algorithm>

#include "ops/linear.h"
#include "ops/testing.h"

namespace brim::ops {

using device::Isa;
using tensor::DType;

namespace {

using testing::HostTensor;
using testing::kEps32;

struct LinearGradCase {
  int64_t T = 1, N = 1, K = 1;
  GradWrite d_x_write = GradWrite::overwrite, d_w_write = GradWrite::accumulate;
  int64_t pad = 0;
  int threads = 1;
};

struct Grads {
  HostTensor d_x, d_w, d_bias;
};

Grads run(const LinearGradCase& c, Precision precision, Isa isa, const HostTensor& x, const HostTensor& w,
          const HostTensor& d_y) {
  // Accumulated gradients start from known values, overwritten ones from poison.
  Grads g{HostTensor(DType::f32, {c.T, c.K}, c.pad), HostTensor(DType::f32, {c.N, c.K}, c.pad),
          HostTensor(DType::f32, {c.N})};
  if (c.d_x_write == GradWrite::accumulate) g.d_x.fill(0.25);
  if (c.d_w_write == GradWrite::accumulate) {
    g.d_w.fill(-0.5);
    g.d_bias.fill(-0.5);
  }
  ThreadPool pool(c.threads);
  device::CpuStream stream(c.threads > 1 ? &pool : nullptr, isa);
  const int64_t bytes = linear_grad_scratch_bytes(stream, c.T, c.N, c.K, precision, c.threads);
  HostTensor scratch = testing::bytes_tensor(bytes + 64);
  LinearGradArgs args;
  args.x = x;
  args.w_plain = w;
  args.d_y = d_y;
  args.d_x = g.d_x;
  args.d_w = g.d_w;
  args.d_bias = g.d_bias;
  args.scratch = tensor::TensorView(scratch.as<uint8_t>(), DType::u8, {bytes});
  args.precision = precision;
  args.d_x_write = c.d_x_write;
  args.d_w_write = c.d_w_write;
  linear_grad(stream, args);
  for (int64_t i = bytes; i < bytes + 64; ++i) EXPECT_EQ(scratch.as<uint8_t>()[i], 0xFF) << "scratch overrun";
  return g;
}

double operand(double v, Precision precision) {
  return precision == Precision::bf16 ? to_float(tensor::to_bf16(static_cast<float>(v))) : v;
}

void check(const LinearGradCase& c, Precision precision, Isa isa) {
  SCOPED_TRACE(fmt::format("{} {} T {} N {} K {} threads {}", isa_name(isa), precision_name(precision), c.T, c.N, c.K,
                           c.threads));
  const HostTensor x = testing::random_tensor(DType::f32, {c.T, c.K}, 1, 1, 0, c.pad),
                   w = testing::random_tensor(DType::f32, {c.N, c.K}, 2, 1, 0, c.pad);
  const HostTensor d_y = testing::random_tensor(DType::f32, {c.T, c.N}, 3, 1, 0, c.pad);
  const Grads g = run(c, precision, isa, x, w, d_y);
  // Sum over `depth` of a*b: each product and partial sum is rounded once (to odd by some bf16 units: twice the error),
  // and once more when added to the existing value.
  const auto expect = [&](const HostTensor& actual, int64_t depth, double before, auto&& term) {
    std::vector<double> sums, tolerance;
    for (int64_t r = 0; r < actual.rows(); ++r)
      for (int64_t col = 0; col < actual.cols(); ++col) {
        double sum = before, size = std::fabs(before);
        for (int64_t i = 0; i < depth; ++i) {
          const double p = term(r, col, i);
          sum += p;
          size += std::fabs(p);
        }
        sums.push_back(sum);
        tolerance.push_back((precision == Precision::bf16 ? 4 : 2) * static_cast<double>(depth + 1) * kEps32 * size +
                            0x1p-120);
      }
    EXPECT_TRUE(testing::close(actual.values(), sums, [&](size_t i) { return tolerance[i]; }));
  };
  const double x_before = c.d_x_write == GradWrite::accumulate ? 0.25 : 0,
               w_before = c.d_w_write == GradWrite::accumulate ? -0.5 : 0;
  expect(g.d_x, c.N, x_before, [&](int64_t t, int64_t k, int64_t n) {
    return operand(d_y.at(t, n), precision) * operand(w.at(n, k), precision);
  });
  expect(g.d_w, c.T, w_before, [&](int64_t n, int64_t k, int64_t t) {
    return operand(d_y.at(t, n), precision) * operand(x.at(t, k), precision);
  });
  expect(g.d_bias, c.T, w_before, [&](int64_t n, int64_t, int64_t t) { return d_y.at(t, n); });
}

void check_all_grads(const LinearGradCase& c) {
  for (const Isa isa : device::supported_isas())
    for (const Precision precision : {Precision::fp32, Precision::bf16}) check(c, precision, isa);
}

TEST(LinearGrad, MatchesFp64AtAllSizes) {
  for (const int64_t T : {0, 1, 7, 33})
    for (const int64_t N : {1, 16, 31, 50})
      for (const int64_t K : {1, 17, 48, 65}) check_all_grads({.T = T, .N = N, .K = K});
}

TEST(LinearGrad, OverwritesOrAdds) {
  for (const GradWrite x_write : {GradWrite::overwrite, GradWrite::accumulate})
    for (const GradWrite w_write : {GradWrite::overwrite, GradWrite::accumulate})
      for (const int64_t T : {0, 20})
        check_all_grads({.T = T, .N = 33, .K = 40, .d_x_write = x_write, .d_w_write = w_write, .pad = 3});
}

TEST(LinearGrad, SplitsTheDepthIntoSeveralPieces) {
  check_all_grads({.T = 1100, .N = 20, .K = 24, .d_w_write = GradWrite::overwrite, .threads = 2});
}

TEST(LinearGrad, ThreadsDoNotChangeBits) {
  for (const Isa isa : device::supported_isas())
    for (const Precision precision : {Precision::fp32, Precision::bf16}) {
      const LinearGradCase one{.T = 600, .N = 70, .K = 50}, three{.T = 600, .N = 70, .K = 50, .threads = 3};
      const HostTensor x = testing::random_tensor(DType::f32, {600, 50}, 1),
                       w = testing::random_tensor(DType::f32, {70, 50}, 2);
      const HostTensor d_y = testing::random_tensor(DType::f32, {600, 70}, 3);
      const Grads a = run(one, precision, isa, x, w, d_y), b = run(three, precision, isa, x, w, d_y);
      EXPECT_TRUE(testing::same_bits(a.d_x, b.d_x));
      EXPECT_TRUE(testing::same_bits(a.d_w, b.d_w));
      EXPECT_TRUE(testing::same_bits(a.d_bias, b.d_bias));
    }
}

// loss = sum(d_y * linear(x)) is bilinear, so a central difference is exact up to rounding.
TEST(LinearGrad, IsTheGradientOfLinear) {
  const int64_t T = 5, N = 7, K = 6;
  const HostTensor x = testing::random_tensor(DType::f32, {T, K}, 1), w = testing::random_tensor(DType::f32, {N, K}, 2);
  const HostTensor bias = testing::random_tensor(DType::f32, {N}, 4),
                   d_y = testing::random_tensor(DType::f32, {T, N}, 3);
  const Isa isa = device::best_isa();
  const Grads g = run({.T = T, .N = N, .K = K, .d_w_write = GradWrite::overwrite}, Precision::fp32, isa, x, w, d_y);
  const auto loss = [&] {
    HostTensor packed = testing::bytes_tensor(linear_packed_bytes(N, K, Precision::fp32, isa)), y(DType::f32, {T, N});
    linear_pack(w, {}, Precision::fp32, isa, packed.as<uint8_t>(), nullptr);
    device::CpuStream stream(nullptr, isa);
    HostTensor scratch = testing::bytes_tensor(linear_scratch_bytes(stream, T, N, K, Precision::fp32, 1));
    LinearArgs args;
    args.x = x;
    args.w = {N, K, Precision::fp32, packed, {}, isa};
    args.bias = bias;
    args.y = y;
    args.scratch = scratch;
    linear(stream, args);
    double sum = 0;
    for (int64_t t = 0; t < T; ++t)
      for (int64_t n = 0; n < N; ++n) sum += y.at(t, n) * d_y.at(t, n);
    return sum;
  };
  const auto differences = [&](const HostTensor& of, const HostTensor& grad) {
    for (int64_t r = 0; r < of.rows(); ++r)
      for (int64_t c = 0; c < of.cols(); ++c) {
        const double before = of.at(r, c);
        of.set(r, c, before + 0.5);
        const double up = loss();
        of.set(r, c, before - 0.5);
        const double slope = up - loss();
        of.set(r, c, before);
        EXPECT_NEAR(slope, grad.at(r, c), 1e-4);  // 35 outputs, each within 20 roundings of about 10
      }
  };
  differences(x, g.d_x);
  differences(w, g.d_w);
  differences(bias, g.d_bias);
}

// With an odd number of labels, a GPU accumulates the weight gradient in scratch.
TEST(LinearGrad, CudaScratchHoldsTheGradientOfManyLabels) {
  const device::NullStream card(nullptr, device::DeviceKind::cuda, device::Isa::generic);
  EXPECT_EQ(linear_grad_scratch_bytes(card, 64, 3, 768, Precision::bf16, 1), kCudaLinearScratchBytes);
  EXPECT_GE(linear_grad_scratch_bytes(card, 64, 20'001, 768, Precision::bf16, 1), int64_t{20'001} * 768 * 4);
}

TEST(LinearGrad, SkipsEmptyOutputs) {
  const HostTensor x = testing::random_tensor(DType::f32, {4, 5}, 1), w = testing::random_tensor(DType::f32, {3, 5}, 2),
                   d_y = testing::random_tensor(DType::f32, {4, 3}, 3);
  device::CpuStream stream(nullptr, device::best_isa());
  HostTensor scratch = testing::bytes_tensor(linear_grad_scratch_bytes(stream, 4, 3, 5, Precision::fp32, 1)),
             d_bias(DType::f32, {3});
  LinearGradArgs args;
  args.x = x;
  args.w_plain = w;
  args.d_y = d_y;
  args.d_bias = d_bias;
  args.d_w_write = GradWrite::overwrite;
  args.scratch = scratch;
  linear_grad(stream, args);
  EXPECT_FALSE(std::isnan(d_bias.at(0)));
  args.precision = Precision::int8;
  EXPECT_THROW(linear_grad(stream, args), Error);
}

}  // namespace
}  // namespace brim::ops
