// SPDX-License-Identifier: Apache-2.0
// Test support for fp8 training on any device: runs golden batches and bounds the error due to e4m3 rounding.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "model/golden_training.h"

namespace brim::model {

inline std::vector<size_t> all_rows(const GoldenTraining& training) {
  std::vector<size_t> rows(training.sequences());
  std::iota(rows.begin(), rows.end(), size_t{0});
  return rows;
}

// e4m3 has 3 fraction bits: the relative error of an element is at most 2^-4, with this root mean square for uniformly
// distributed fractions.
inline constexpr float kCodeError = 0.026f;

struct Fp8Run {
  double loss = 0;
  std::vector<std::vector<float>> grads;
};
inline Fp8Run run_golden(GoldenTraining& training, Recompute recompute, size_t parts = 1) {
  const double scale = 1 / training.golden()["weight"].get<double>();
  const auto rows = all_rows(training);
  training.begin_step(rows, scale);
  Fp8Run result;
  const size_t each = (rows.size() + parts - 1) / parts;
  for (size_t begin = 0; begin < rows.size(); begin += each) {
    std::vector<size_t> part(std::min(each, rows.size() - begin));
    std::iota(part.begin(), part.end(), begin);
    result.loss += training.pass(part, recompute, scale);
  }
  for (size_t p = 0; p < training.state().params().size(); ++p) result.grads.push_back(training.gradient(p));
  return result;
}
inline Fp8Run run_in(ops::Precision precision, const std::string& name, Recompute recompute, size_t parts = 1,
                     float dropout = 0) {
  auto device = device::open_cpu_device(1);
  GoldenTraining training(*device, name, precision, 1, dropout);
  return run_golden(training, recompute, parts);
}
// fp32 run in which the matrices that fp8 would multiply are perturbed by as much as their codes would be.
inline Fp8Run run_with_noise(const std::string& name, uint64_t seed) {
  auto device = device::open_cpu_device(1);
  GoldenTraining training(*device, name, ops::Precision::fp32);
  const SlabLayout& layout = training.state().layout();
  std::vector<float> master = training.state().download(training.stream());
  std::mt19937 random(static_cast<uint32_t>(seed));
  std::uniform_real_distribution<float> error(-kCodeError * std::sqrt(3.0f), kCodeError * std::sqrt(3.0f));
  for (size_t i = 0; i < layout.params.size(); ++i)
    for (int64_t k = 0; trains_in_fp8(layout.params[i]) && k < layout.params[i].elements(); ++k)
      master[static_cast<size_t>(layout.offset[i] + k)] *= 1 + error(random);
  training.state().upload(training.stream(), master);
  return run_golden(training, Recompute::none);
}

inline int64_t fp8_matrices(const ModelShape& shape) {
  int64_t n = 0;
  for (const ParamSpec& spec : model_params(shape)) n += trains_in_fp8(spec);
  return n;
}

inline double norm_of(const std::vector<float>& v) {
  double sum = 0;
  for (const float x : v) sum += static_cast<double>(x) * x;
  return std::sqrt(sum);
}

inline std::vector<float> difference(const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<float> d(a.size());
  for (size_t i = 0; i < a.size(); ++i) d[i] = a[i] - b[i];
  return d;
}

// Every product has three kinds of operands (weights, activations, gradients) with an element error of kCodeError. Its
// effect depends on the model (tiny ones with sharp attention change by nearly 100 %), so it is measured with one kind
// in fp32 on the CPU, as the maximum of a few draws. Three independent kinds give √3 times that; the bound is twice the
// result. Vanishing gradients (key biases) are compared with a small share of the largest one. `more` bounds the
// device's other rounding, relative to a gradient's norm. Returns the largest share of the bound that was used.
inline double expect_fp8_gradients(device::Device& device, const std::string& name, double more) {
  const Fp8Run exact = run_in(ops::Precision::fp32, name, Recompute::none);
  GoldenTraining training(device, name, ops::Precision::fp8);
  const Fp8Run coded = run_golden(training, Recompute::none);
  EXPECT_NE(coded.loss, exact.loss) << "the products are in fp8";
  std::vector<Fp8Run> draws;
  for (uint64_t seed = 1; seed <= 4; ++seed) draws.push_back(run_with_noise(name, seed));
  const auto bound = [&](auto&& error_of) {
    double most = 0;
    for (const Fp8Run& draw : draws) most = std::max(most, error_of(draw));
    return 2 * std::sqrt(3.0) * most;
  };
  EXPECT_NEAR(coded.loss, exact.loss,
              bound([&](const Fp8Run& r) { return std::abs(r.loss - exact.loss); }) + more * exact.loss);
  double largest = 0, worst = 0;
  for (const auto& g : exact.grads) largest = std::max(largest, norm_of(g));
  for (size_t p = 0; p < exact.grads.size(); ++p) {
    const auto error_of = [&](const Fp8Run& r) { return norm_of(difference(r.grads[p], exact.grads[p])); };
    const double allowed =
        bound(error_of) + (2 * std::sqrt(3.0) * kCodeError + more) * (norm_of(exact.grads[p]) + 0.02 * largest);
    EXPECT_LE(error_of(coded), allowed) << "parameter " << p;
    worst = std::max(worst, error_of(coded) / std::max(1e-30, allowed));
  }
  return worst;
}

}  // namespace brim::model
