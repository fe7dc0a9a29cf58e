// SPDX-License-Identifier: Apache-2.0
#include "model/fp8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "model/forward_runner.h"
#include "model/weights.h"

namespace brim::model {
namespace {

TEST(Fp8, UnsupportedWidthsRunInBf16) {
  struct Case {
    int64_t hidden, ffn;
    bool attention, feed_forward;
  };
  for (const Case c : {Case{320, 1280, true, true}, {320, 1288, true, false}, {312, 1200, false, false}}) {
    ModelShape s;
    s.layers = 2;
    s.hidden = c.hidden;
    s.heads = 2;
    s.ffn = c.ffn;
    s.vocab = s.positions = 64;
    s.sequence_classes = 3;
    const auto specs = model_params(s);
    const Params params = describe_weights(s, ops::Precision::fp8, device::DeviceKind::cuda, device::Isa::generic);
    int matrices = 0;
    for (size_t i = 0; i < specs.size(); ++i) {
      if (specs[i].layer < 0 || specs[i].kind != ParamKind::matrix) continue;
      ++matrices;
      const bool fp8 = specs[i].rows == c.ffn || specs[i].cols == c.ffn ? c.feed_forward : c.attention;
      for (const ops::LinearWeight* m : {&params[i].matrix, &params[i].first, &params[i].rest}) {
        if (m->N == 0) continue;
        EXPECT_EQ(m->precision, fp8 ? ops::Precision::fp8 : ops::Precision::bf16) << c.hidden << " " << c.ffn;
        EXPECT_EQ(m->data.dtype, fp8 ? tensor::DType::f8e4m3 : tensor::DType::bf16);
        EXPECT_EQ(static_cast<bool>(m->scale), fp8);
      }
      EXPECT_EQ(static_cast<bool>(params[i].input.quantise), fp8);
    }
    EXPECT_EQ(matrices, 8);
    for (const Output output : {Output::sequence_logits, Output::hidden})
      EXPECT_GT(
          plan_forward(s, ops::Precision::fp8, device::DeviceKind::cuda, device::Isa::generic, 1, {256, 16, 64}, output)
              .arena_bytes(),
          0);
  }
}

// Random and worst-case normalised vectors never exceed the bounds, and the worst case reaches them.
TEST(Fp8, BoundsHoldForEveryNormalisedVector) {
  const size_t H = 24, N = 7;
  std::mt19937 generator(2);
  std::normal_distribution<float> normal;
  std::vector<float> gamma(H), beta(H), w(N * H), bias(N);
  for (auto* v : {&gamma, &beta, &w, &bias})
    for (float& x : *v) x = normal(generator);
  const double norm = norm_bound(gamma, beta), product = product_bound(w, bias, gamma, beta);
  double widest = 0, widest_product = 0;
  const auto look = [&](std::vector<double> x) {
    double mean = 0, variance = 0;
    for (const double v : x) mean += v / static_cast<double>(H);
    for (double& v : x) {
      v -= mean;
      variance += v * v / static_cast<double>(H);
    }
    for (size_t i = 0; i < H; ++i) {
      x[i] = x[i] / std::sqrt(variance) * static_cast<double>(gamma[i]) + static_cast<double>(beta[i]);
      widest = std::max(widest, std::abs(x[i]));
    }
    for (size_t n = 0; n < N; ++n) {
      double sum = bias[n];
      for (size_t i = 0; i < H; ++i) sum += static_cast<double>(w[n * H + i]) * x[i];
      widest_product = std::max(widest_product, std::abs(sum));
    }
  };
  for (int round = 0; round < 200; ++round) {
    std::vector<double> x(H);
    for (double& v : x) v = normal(generator);
    look(x);
  }
  for (size_t i = 0; i < H; ++i)
    for (const double sign : {1.0, -1.0}) {
      std::vector<double> x(H, 0);
      x[i] = sign;
      look(x);
    }
  for (size_t n = 0; n < N; ++n) {
    std::vector<double> x(H);
    for (size_t i = 0; i < H; ++i) x[i] = static_cast<double>(w[n * H + i]) * static_cast<double>(gamma[i]);
    look(x);
  }
  EXPECT_LE(widest, norm * (1 + 1e-6));
  EXPECT_GT(widest, norm * 0.999);
  EXPECT_LE(widest_product, product * (1 + 1e-6));
  EXPECT_GT(widest_product, product * 0.8);
}

}  // namespace
}  // namespace brim::model
