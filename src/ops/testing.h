// SPDX-License-Identifier: Apache-2.0
// Helpers for op tests: poisoned tensors, ragged batches, streams for every instruction set and several thread counts,
// and a comparator with a tolerance per element derived from the fp64 reference. Tested in testing_test.cc.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "device/stream.h"
#include "ops/dropout.h"
#include "ops/op.h"
#include "tensor/tensor_view.h"

namespace brim::ops::testing {

constexpr double kEps32 = 0x1p-24;  // half a unit in the last place of fp32, relative: the error of one rounding
constexpr double kEpsBf16 = 0x1p-8, kEpsF16 = 0x1p-11;

constexpr Activation kEveryActivation[] = {Activation::none, Activation::gelu,      Activation::relu,
                                           Activation::tanh, Activation::gelu_tanh, Activation::quick_gelu,
                                           Activation::silu};

// Activations in fp64. (1 + tanh y) / 2 is σ(2y), which keeps the tail that the sum would round away.
inline double sigmoid64(double z) { return 1 / (1 + std::exp(-z)); }
inline double gate64(Activation activation, double x) {
  return activation == Activation::gelu_tanh    ? 2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)
         : activation == Activation::quick_gelu ? 1.702 * x
                                                : x;
}
inline double activation64(Activation activation, double x) {
  switch (activation) {
    case Activation::none:
      return x;
    case Activation::gelu:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case Activation::relu:
      return std::max(0.0, x);
    case Activation::tanh:
      return std::tanh(x);
    default:
      return x * sigmoid64(gate64(activation, x));
  }
}
inline double slope64(Activation activation, double x) {
  switch (activation) {
    case Activation::none:
      return 1;
    case Activation::gelu:
      return 0.5 * std::erfc(-x / std::sqrt(2.0)) + x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI);
    case Activation::relu:
      return x > 0 ? 1 : 0;
    case Activation::tanh:
      return 1 - std::tanh(x) * std::tanh(x);
    default: {
      const double z = gate64(activation, x), s = sigmoid64(z), past = sigmoid64(-z);
      const double gate_slope = activation == Activation::gelu_tanh
                                    ? 2 * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x)
                                    : gate64(activation, 1);
      return s + (past == 0 || s == 0 ? 0 : x * gate_slope * s * past);
    }
  }
}
// Roundings of an accurate fp32 activation, in units of kEps32 of its value: the exponential in the tail magnifies
// that of its argument.
inline double activation_roundings(Activation activation, double x) {
  const bool gated =
      activation == Activation::gelu_tanh || activation == Activation::quick_gelu || activation == Activation::silu;
  return 8 + (gated ? 3 * std::fabs(gate64(activation, x)) : 2 * x * x);
}

// Host memory with a view: rows x cols with `pad` elements between rows, 64-byte aligned, filled with all bits set (NaN
// for floats, -1 for integers) so that unwritten elements fail the tests.
class HostTensor {
 public:
  HostTensor() = default;
  HostTensor(tensor::DType dtype, std::initializer_list<int64_t> dims, int64_t pad = 0) {
    view_ = tensor::TensorView(nullptr, dtype, dims);
    if (pad > 0 && view_.rank == 2) view_.stride[0] += pad;
    const int64_t elements = view_.rank == 2 ? view_.dim[0] * view_.stride[0] : view_.elements();
    bytes_.assign(static_cast<size_t>(elements * dtype_bytes(dtype)) + 64, 0xFF);
    const auto address = reinterpret_cast<uintptr_t>(bytes_.data());
    view_.data = bytes_.data() + (64 - address % 64) % 64;
  }
  HostTensor(HostTensor&&) = default;
  HostTensor& operator=(HostTensor&&) = default;

  const tensor::TensorView& view() const { return view_; }
  operator const tensor::TensorView&() const { return view_; }  // NOLINT: implicit on purpose
  template <class T>
  T* as() const {
    return view_.as<T>();
  }

  // Element [row, col] of a rank 1 or 2 tensor of any type as double.
  double at(int64_t row, int64_t col = 0) const {
    const int64_t i = row * view_.stride[0] + col;
    switch (view_.dtype) {
      case tensor::DType::f16:
        return to_float(as<tensor::f16_t>()[i]);
      case tensor::DType::bf16:
        return to_float(as<tensor::bf16_t>()[i]);
      case tensor::DType::f64:
        return as<double>()[i];
      case tensor::DType::i32:
        return as<int32_t>()[i];
      case tensor::DType::u8:
        return as<uint8_t>()[i];
      case tensor::DType::i8:
        return as<int8_t>()[i];
      default:
        return as<float>()[i];
    }
  }
  void set(int64_t row, int64_t col, double value) const {
    const int64_t i = row * view_.stride[0] + col;
    switch (view_.dtype) {
      case tensor::DType::f16:
        as<tensor::f16_t>()[i] = tensor::to_f16(static_cast<float>(value));
        break;
      case tensor::DType::bf16:
        as<tensor::bf16_t>()[i] = tensor::to_bf16(static_cast<float>(value));
        break;
      case tensor::DType::f64:
        as<double>()[i] = value;
        break;
      case tensor::DType::i32:
        as<int32_t>()[i] = static_cast<int32_t>(value);
        break;
      default:
        as<float>()[i] = static_cast<float>(value);
        break;
    }
  }
  int64_t rows() const { return view_.rows(); }
  int64_t cols() const { return view_.cols(); }

  // All elements in row order as double, without padding between rows.
  std::vector<double> values() const {
    std::vector<double> all;
    for (int64_t r = 0; r < rows(); ++r)
      for (int64_t c = 0; c < cols(); ++c) all.push_back(at(r, c));
    return all;
  }
  void fill(double value) const {
    for (int64_t r = 0; r < rows(); ++r)
      for (int64_t c = 0; c < cols(); ++c) set(r, c, value);
  }
  void poison() const { fill(std::numeric_limits<double>::quiet_NaN()); }

 private:
  std::vector<uint8_t> bytes_;
  tensor::TensorView view_;
};

// Normal values around `mean`.
inline HostTensor random_tensor(tensor::DType dtype, std::initializer_list<int64_t> dims, uint64_t seed,
                                double scale = 1, double mean = 0, int64_t pad = 0) {
  HostTensor t(dtype, dims, pad);
  std::mt19937_64 generator(seed);
  std::normal_distribution<double> normal(mean, scale);
  for (int64_t r = 0; r < t.rows(); ++r)
    for (int64_t c = 0; c < t.cols(); ++c) t.set(r, c, normal(generator));
  return t;
}

inline HostTensor int_tensor(const std::vector<int32_t>& values) {
  HostTensor t(tensor::DType::i32, {static_cast<int64_t>(values.size())});
  for (size_t i = 0; i < values.size(); ++i) t.as<int32_t>()[i] = values[i];
  return t;
}
inline HostTensor long_tensor(const std::vector<int64_t>& values) {
  HostTensor t(tensor::DType::i64, {static_cast<int64_t>(values.size())});
  std::copy(values.begin(), values.end(), t.as<int64_t>());
  return t;
}
inline HostTensor bytes_tensor(int64_t bytes) { return HostTensor(tensor::DType::u8, {bytes}); }

// Allowed difference from the expected value: tolerance(i) for element i.
using Tolerance = std::function<double(size_t)>;

// Checks every element against its tolerance; NaN and infinity must match exactly in kind and sign. Reports the worst
// element, both values, the fraction of the tolerance used and the norms.
inline ::testing::AssertionResult close(const std::vector<double>& actual, const std::vector<double>& expected,
                                        const Tolerance& tolerance) {
  if (actual.size() != expected.size())
    return ::testing::AssertionFailure() << actual.size() << " elements, expected " << expected.size();
  double worst = 0, norm_actual = 0, norm_expected = 0;
  size_t at = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    norm_actual += actual[i] * actual[i];
    norm_expected += expected[i] * expected[i];
    double share;
    if (std::isnan(expected[i]) || std::isnan(actual[i])) {
      share = std::isnan(expected[i]) && std::isnan(actual[i]) ? 0 : INFINITY;
    } else if (std::isinf(expected[i]) || std::isinf(actual[i])) {
      share = expected[i] == actual[i] ? 0 : INFINITY;
    } else {
      const double allowed = tolerance(i), error = std::fabs(actual[i] - expected[i]);
      share = error == 0 ? 0 : allowed > 0 ? error / allowed : INFINITY;  // a NaN tolerance allows nothing
    }
    if (share > worst || i == 0) {
      worst = share;
      at = i;
    }
  }
  if (worst <= 1) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "element " << at << " is " << actual[at] << ", expected " << expected[at]
                                       << ": " << worst << " times the tolerance " << tolerance(at) << "; norms "
                                       << std::sqrt(norm_actual) << " and " << std::sqrt(norm_expected);
}
inline ::testing::AssertionResult close(const std::vector<double>& actual, const std::vector<double>& expected,
                                        double tolerance) {
  return close(actual, expected, [=](size_t) { return tolerance; });
}
// Same bits in every element (NaN equals itself).
inline ::testing::AssertionResult same_bits(const HostTensor& a, const HostTensor& b) {
  if (a.rows() != b.rows() || a.cols() != b.cols() || a.view().dtype != b.view().dtype)
    return ::testing::AssertionFailure() << a.view().shape_text() << " against " << b.view().shape_text();
  const int64_t size = dtype_bytes(a.view().dtype);
  for (int64_t r = 0; r < a.rows(); ++r)
    for (int64_t c = 0; c < a.cols(); ++c)
      if (std::memcmp(static_cast<const char*>(a.view().data) + (r * a.view().ld() + c) * size,
                      static_cast<const char*>(b.view().data) + (r * b.view().ld() + c) * size,
                      static_cast<size_t>(size)) != 0)
        return ::testing::AssertionFailure()
               << "row " << r << " column " << c << ": " << a.at(r, c) << " against " << b.at(r, c);
  return ::testing::AssertionSuccess();
}

// Calls fn(stream) for every instruction set of this machine, without a pool and with pools of two and three threads.
template <class Fn>
void for_each_cpu_stream(Fn&& fn) {
  for (const device::Isa isa : device::supported_isas())
    for (const int threads : {0, 2, 3}) {
      std::unique_ptr<ThreadPool> pool = threads == 0 ? nullptr : std::make_unique<ThreadPool>(threads);
      device::CpuStream stream(pool.get(), isa);
      SCOPED_TRACE(std::string(isa_name(isa)) + ", " + std::to_string(threads) + " pool threads");
      fn(stream);
    }
}

// Lengths of ragged batches: empty, single, around the tiles of 8, 16, 32 and 48, odd ones, one long among short.
inline std::vector<std::vector<int32_t>> ragged_lengths() {
  return {
      {}, {0}, {1}, {0, 0, 3, 0}, {7, 8, 9}, {15, 16, 17, 1, 0, 5}, {31, 32, 33}, {47, 48, 49, 50}, {5, 2, 131, 3, 1}};
}
inline std::vector<int32_t> starts_of(const std::vector<int32_t>& lengths) {
  std::vector<int32_t> starts{0};
  for (const int32_t n : lengths) starts.push_back(starts.back() + n);
  return starts;
}

// d f / d x[i] for every i by central differences in fp64: truncation about step² f''', rounding 1e-16 |f| / step.
inline std::vector<double> finite_differences(std::vector<double>& x, const std::function<double()>& f,
                                              double step = 1e-5) {
  std::vector<double> slopes;
  for (double& v : x) {
    const double kept = v;
    v = kept + step;
    const double above = f();
    v = kept - step;
    const double below = f();
    v = kept;
    slopes.push_back((above - below) / (2 * step));
  }
  return slopes;
}

// Runs fn(stream) -> std::vector<HostTensor> with zero, two, three and five pool threads and expects the same bits.
template <class Fn>
void expect_same_bits_for_all_thread_counts(Fn&& fn) {
  for (const device::Isa isa : device::supported_isas()) {
    SCOPED_TRACE(isa_name(isa));
    device::CpuStream alone(nullptr, isa);
    const std::vector<HostTensor> want = fn(alone);
    for (const int threads : {2, 3, 5}) {
      ThreadPool pool(threads);
      device::CpuStream stream(&pool, isa);
      const std::vector<HostTensor> got = fn(stream);
      for (size_t i = 0; i < want.size(); ++i)
        EXPECT_TRUE(same_bits(got[i], want[i])) << "result " << i << ", " << threads << " threads";
    }
  }
}

// Whether dropout keeps an element, as dropout.h defines it.
inline bool dropout_kept(const Dropout& d, int64_t row, int64_t column) {
  if (!d.on()) return true;
  const uint64_t bits =
      dropout_bits(d.seed, d.site, static_cast<uint64_t>(d.first_row + row), static_cast<uint32_t>(column / 4));
  return dropout_keeps(bits, static_cast<int>(column & 3), dropout_threshold(d.probability));
}
// Factor applied by dropout to an element, in fp64.
inline double dropout_factor(const Dropout& d, int64_t row, int64_t column) {
  return !d.on() ? 1.0 : dropout_kept(d, row, column) ? 1 / (1 - static_cast<double>(d.probability)) : 0.0;
}

}  // namespace brim::ops::testing
