// SPDX-License-Identifier: Apache-2.0
// N-BEATS as Brim computes it: blocks of fully connected layers that subtract what they explain of a window from it and
// add what they foresee to the forecast. Several lanes (ops/lane.h) of one shape are computed side by side; lookbacks
// may differ and are padded to the longest, which changes nothing: what is padded is masked, and its weights neither
// act nor move. Time runs backwards: index 0 of a window is its newest point.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ops/lane.h"

namespace brim::forecast {

// What a block's output is made of: free weights, polynomials of time, or sines and cosines.
enum class StackKind : uint8_t { generic, trend, seasonality };
const char* stack_kind_name(StackKind kind);

struct StackSpec {
  StackKind kind = StackKind::generic;
  int64_t blocks = 1, width = 512;
  bool shared = false;  // its blocks use one set of weights
  bool operator==(const StackSpec&) const = default;
};

// What all lanes of a wave have in common.
struct NbeatsShape {
  int64_t horizon = 0;
  int64_t lookback = 0;    // the longest lane's, in points
  int64_t quantiles = 1;   // forecasts of a point; 1: the point itself
  int64_t layers = 4;      // fully connected ones before the output
  bool first_relu = true;  // the first layer has a ReLU (NeuralForecast's has none)
  int64_t degree = 2;      // of the trend's polynomials
  int64_t harmonics = 1;
  std::vector<StackSpec> stacks;

  int64_t window() const { return (lookback + 7) / 8 * 8; }               // padded for the matrix kernels
  int64_t forecast() const { return (quantiles * horizon + 7) / 8 * 8; }  // likewise
  int64_t output() const { return window() + forecast(); }                // of a block: backcast, then forecast
  int64_t blocks() const;
  bool operator==(const NbeatsShape&) const = default;
};

// Rows of a stack's basis: functions of time for the backcast and for each forecast. 0: generic.
int64_t basis_rows(const NbeatsShape& shape, StackKind kind);
// basis_rows x output() for a lane of this lookback; columns that are padding are zero.
std::vector<float> basis_values(const NbeatsShape& shape, StackKind kind, int64_t lookback);

// One parameter of a lane: a matrix [rows,cols] or a bias [rows].
struct NbeatsParam {
  enum class Role : uint8_t { weight, bias, out_weight, out_bias };
  std::string name;  // "blocks.0.layers.2.weight", "blocks.0.basis_parameters.bias"
  Role role = Role::weight;
  int64_t stack = 0, block = 0, layer = 0;
  int64_t rows = 0, cols = 0;  // cols 1 for a bias
  int64_t offset = 0;          // in the lane's slab, in elements
  int64_t elements() const { return rows * cols; }
};

// A lane's slab: matrices, then biases (which are not decayed), each on a 64-element boundary. The order is a file
// format: checkpoints hold slabs.
struct NbeatsLayout {
  std::vector<NbeatsParam> params;
  std::vector<int64_t> block_params;  // by block: index in `params` of its first layer's weight
  int64_t decayed = 0, elements = 0;
  // Parameters of a block: layer i's weight, or its bias; i == layers is the output.
  size_t weight_of(int64_t block, int64_t layer) const { return at(block, layer, 0); }
  size_t bias_of(int64_t block, int64_t layer) const { return at(block, layer, 1); }

 private:
  size_t at(int64_t block, int64_t layer, int64_t which) const {
    return static_cast<size_t>(block_params[static_cast<size_t>(block)] + 2 * layer + which);
  }
};
NbeatsLayout nbeats_layout(const NbeatsShape& shape);

// The same parameters without padding, for one lane alone: sizes a lookback really has.
struct NbeatsSize {
  int64_t rows = 0, cols = 0;
};
NbeatsSize true_size(const NbeatsShape& shape, const NbeatsParam& param, int64_t lookback);
// Element (row, col) of a parameter without padding, as an index in the padded one.
int64_t padded_index(const NbeatsShape& shape, const NbeatsParam& param, int64_t lookback, int64_t row, int64_t col);

// A fresh lane's slab: every matrix and bias uniform in ±1/√(inputs of its layer, without padding), a pure function of
// (seed, parameter, element), so that padding and the lanes beside it do not change it.
std::vector<float> draw_lane(const NbeatsShape& shape, const NbeatsLayout& layout, uint64_t seed, int64_t lookback);

}  // namespace brim::forecast
