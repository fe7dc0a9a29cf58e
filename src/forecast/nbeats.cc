// SPDX-License-Identifier: Apache-2.0
#include "forecast/nbeats.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace brim::forecast {
namespace {

constexpr int64_t kParamAlignment = 64;  // in elements: 128 bytes for half types

int64_t trend_rows(const NbeatsShape& shape) { return shape.degree + 1; }
// Frequencies 0 and n .. below nH/2, divided by n.
int64_t season_count(const NbeatsShape& shape) {
  return 1 + std::max<int64_t>(0, (shape.harmonics * shape.horizon + 1) / 2 - shape.harmonics);
}
double season_frequency(const NbeatsShape& shape, int64_t i) {
  return i == 0 ? 0 : static_cast<double>(shape.harmonics + i - 1) / static_cast<double>(shape.harmonics);
}

// Basis functions of one segment (the backcast or one forecast).
std::vector<std::vector<double>> stretch(const NbeatsShape& shape, StackKind kind, int64_t points, double sign) {
  std::vector<std::vector<double>> rows;
  const auto values = [&](auto&& f) {
    rows.emplace_back();
    for (int64_t t = 0; t < points; ++t) rows.back().push_back(f(static_cast<double>(t)));
  };
  if (kind == StackKind::trend) {
    for (int64_t i = 0; i < trend_rows(shape); ++i)
      values([&](double t) { return std::pow(t / static_cast<double>(points), static_cast<double>(i)); });
    return rows;
  }
  const double turn = sign * 2 * std::numbers::pi / static_cast<double>(shape.horizon);
  for (const bool sine : {false, true})
    for (int64_t i = 0; i < season_count(shape); ++i) {
      const double speed = turn * season_frequency(shape, i);
      values([&](double t) { return sine ? std::sin(speed * t) : std::cos(speed * t); });
    }
  return rows;
}

}  // namespace

const char* stack_kind_name(StackKind kind) {
  constexpr const char* names[] = {"generic", "trend", "seasonality", "exogenous"};
  return names[static_cast<size_t>(kind)];
}

int64_t NbeatsShape::blocks() const {
  int64_t sum = 0;
  for (const StackSpec& s : stacks) sum += s.blocks;
  return sum;
}

int64_t basis_rows(const NbeatsShape& shape, StackKind kind) {
  if (kind == StackKind::generic || kind == StackKind::exogenous) return 0;
  const int64_t each = kind == StackKind::trend ? trend_rows(shape) : 2 * season_count(shape);
  return each * (1 + shape.quantiles);
}

std::vector<float> basis_values(const NbeatsShape& shape, StackKind kind, int64_t lookback) {
  const int64_t N = shape.output();
  std::vector<float> basis(static_cast<size_t>(basis_rows(shape, kind) * N));
  int64_t row = 0;
  const auto put = [&](const std::vector<std::vector<double>>& functions, int64_t column) {
    for (const auto& values : functions) {
      for (size_t t = 0; t < values.size(); ++t)
        basis[static_cast<size_t>(row * N + column) + t] = static_cast<float>(values[t]);
      ++row;
    }
  };
  if (basis.empty()) return basis;
  put(stretch(shape, kind, lookback, -1), 0);
  for (int64_t q = 0; q < shape.quantiles; ++q)
    put(stretch(shape, kind, shape.horizon, 1), shape.window() + q * shape.horizon);
  return basis;
}

NbeatsLayout nbeats_layout(const NbeatsShape& shape) {
  BRIM_CHECK(shape.horizon > 0 && shape.lookback > 0 && shape.layers > 0 && !shape.stacks.empty(),
             "N-BEATS of horizon {}, lookback {}, {} layers, {} stacks", shape.horizon, shape.lookback, shape.layers,
             shape.stacks.size());
  NbeatsLayout layout;
  using Role = NbeatsParam::Role;
  int64_t block = 0;
  for (size_t s = 0; s < shape.stacks.size(); ++s) {
    const StackSpec& stack = shape.stacks[s];
    BRIM_CHECK(stack.blocks > 0 && stack.width > 0 && stack.width % 8 == 0,
               "stack {} has {} blocks of width {}: widths are multiples of 8", s, stack.blocks, stack.width);
    const bool exogenous = stack.kind == StackKind::exogenous;
    BRIM_CHECK(!exogenous || (shape.covariates.future > 0 && (s == 0 || shape.stacks[s - 1].kind == stack.kind)),
               "stack {} is exogenous: {} future covariates", s, shape.covariates.future);
    const int64_t rows = basis_rows(shape, stack.kind), out = exogenous  ? shape.exogenous_rows()
                                                              : rows > 0 ? rows
                                                                         : shape.output();
    const int64_t first = stack.width + shape.covariate_units(stack.width);  // outputs of the first layer
    for (int64_t b = 0; b < stack.blocks; ++b, ++block) {
      if (b > 0 && stack.shared) {
        layout.block_params.push_back(layout.block_params.back());
        continue;
      }
      layout.block_params.push_back(static_cast<int64_t>(layout.params.size()));
      for (int64_t i = 0; i <= shape.layers; ++i) {
        const bool last = i == shape.layers;
        const std::string name = last ? "blocks." + std::to_string(block) + ".basis_parameters"
                                      : "blocks." + std::to_string(block) + ".layers." + std::to_string(i);
        const int64_t height = last ? out : stack.width, width = i == 0 ? shape.window() : i == 1 ? first : stack.width;
        const int64_t biases = i == 0 && !last ? first : height;
        const auto stack_index = static_cast<int64_t>(s);
        layout.params.push_back(
            {name + ".weight", last ? Role::out_weight : Role::weight, stack_index, block, i, height, width, 0});
        layout.params.push_back(
            {name + ".bias", last ? Role::out_bias : Role::bias, stack_index, block, i, biases, 1, 0});
      }
      if (shape.covariates.any())
        layout.params.push_back({"blocks." + std::to_string(block) + ".covariates.weight", Role::covariate_weight,
                                 static_cast<int64_t>(s), block, 0, first - stack.width, shape.covariate_inputs(), 0});
    }
  }
  const auto place = [&](bool bias) {
    for (NbeatsParam& p : layout.params)
      if ((p.role == Role::bias || p.role == Role::out_bias) == bias) {
        p.offset = layout.elements;
        layout.elements += (p.elements() + kParamAlignment - 1) / kParamAlignment * kParamAlignment;
      }
  };
  place(false);
  layout.decayed = layout.elements;
  place(true);
  return layout;
}

NbeatsSize true_size(const NbeatsShape& shape, const NbeatsParam& p, int64_t lookback) {
  NbeatsSize size{p.rows, p.cols};
  using Role = NbeatsParam::Role;
  if (p.role == Role::weight && p.layer == 0) size.cols = lookback;
  const bool output = p.role == Role::out_weight || p.role == Role::out_bias;
  if (output && shape.stacks[static_cast<size_t>(p.stack)].kind == StackKind::generic)
    size.rows = lookback + shape.quantiles * shape.horizon;
  return size;
}

int64_t padded_index(const NbeatsShape& shape, const NbeatsParam& p, int64_t lookback, int64_t row, int64_t col) {
  using Role = NbeatsParam::Role;
  const bool output = p.role == Role::out_weight || p.role == Role::out_bias;
  if (output && shape.stacks[static_cast<size_t>(p.stack)].kind == StackKind::generic && row >= lookback)
    row += shape.window() - lookback;  // the forecast follows the padded backcast
  return row * p.cols + col;
}

namespace {

int64_t fan_in(const NbeatsShape& shape, const NbeatsParam& p, int64_t lookback) {
  const int64_t width = shape.stacks[static_cast<size_t>(p.stack)].width;
  if (p.role == NbeatsParam::Role::covariate_weight) return p.cols;
  if (p.layer == 0) return lookback;
  return p.layer == 1 ? width + shape.covariate_units(width) : width;
}

}  // namespace

std::vector<float> draw_lane(const NbeatsShape& shape, const NbeatsLayout& layout, uint64_t seed, int64_t lookback) {
  BRIM_CHECK(lookback > 0 && lookback <= shape.lookback, "a lane looks back {} points, the wave {}", lookback,
             shape.lookback);
  std::vector<float> slab(static_cast<size_t>(layout.elements));
  for (size_t i = 0; i < layout.params.size(); ++i) {
    const NbeatsParam& p = layout.params[i];
    const NbeatsSize size = true_size(shape, p, lookback);
    const int64_t inputs = fan_in(shape, p, lookback);
    const double bound = 1 / std::sqrt(static_cast<double>(inputs));
    const uint64_t of_param = ops::mixed_bits(ops::mixed_bits(seed ^ 0xE7037ED1A0B428DBULL) + i);
    for (int64_t row = 0; row < size.rows; ++row) {
      float* to = slab.data() + p.offset + padded_index(shape, p, lookback, row, 0);
      for (int64_t col = 0; col < size.cols; ++col) {
        const auto element = static_cast<uint64_t>(row * size.cols + col);
        const uint64_t bits = ops::mixed_bits(of_param ^ 0x9E3779B97F4A7C15ULL * (element + 1));
        const double unit = static_cast<double>(bits >> 11) * 0x1p-53;
        to[col] = static_cast<float>((2 * unit - 1) * bound);
      }
    }
  }
  return slab;
}

}  // namespace brim::forecast
