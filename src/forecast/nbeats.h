// SPDX-License-Identifier: Apache-2.0
// N-BEATS model definition: shapes, parameter layout, bases and initialisation. Blocks of fully connected layers
// subtract their backcast from the window and add to the forecast. Several lanes (ops/lane.h) of one shape are computed
// together; shorter lookbacks are padded and masked, which does not change results because padded weights have no
// effect and no gradient. Time is reversed: index 0 of a window is its newest point. The computation is in
// nbeats_pass.h.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "forecast/covariates.h"
#include "ops/lane.h"

namespace brim::forecast {

// Output basis of a block: learned weights, polynomials of time, sines and cosines, or the future covariates of the
// window (NBEATSx). Exogenous stacks come first and have no backcast.
enum class StackKind : uint8_t { generic, trend, seasonality, exogenous };
const char* stack_kind_name(StackKind kind);

struct StackSpec {
  StackKind kind = StackKind::generic;
  int64_t blocks = 1, width = 512;
  bool shared = false;  // all blocks of the stack share one set of weights
  bool operator==(const StackSpec&) const = default;
};

// Properties shared by all lanes of a wave.
struct NbeatsShape {
  int64_t horizon = 0;
  int64_t lookback = 0;    // longest lookback of the lanes, in points
  int64_t quantiles = 1;   // forecasts per point; 1 for point forecasts
  int64_t layers = 4;      // fully connected layers before the output
  bool first_relu = true;  // whether the first layer has a ReLU (not in NeuralForecast)
  int64_t degree = 2;      // degree of the trend polynomials
  int64_t harmonics = 1;
  std::vector<StackSpec> stacks;
  CovariateShape covariates;

  int64_t window() const { return (lookback + 7) / 8 * 8; }               // padded for the matrix kernels
  int64_t forecast() const { return (quantiles * horizon + 7) / 8 * 8; }  // padded too
  int64_t output() const { return window() + forecast(); }                // backcast, then forecast
  int64_t blocks() const;
  int64_t covariate_inputs() const { return covariates.inputs(horizon); }
  // Units of the first layer that read the covariates, beside those that read the window.
  int64_t covariate_units(int64_t width) const { return covariates.any() ? (width / 2 + 7) / 8 * 8 : 0; }
  int64_t exogenous_rows() const { return (quantiles * covariates.future + 7) / 8 * 8; }  // outputs of a block
  bool operator==(const NbeatsShape&) const = default;
};

// Rows of a stack's basis: functions of time for the backcast and for each forecast. 0 for generic stacks.
int64_t basis_rows(const NbeatsShape& shape, StackKind kind);
// [basis_rows, output()] for a lane with this lookback; padded columns are zero.
std::vector<float> basis_values(const NbeatsShape& shape, StackKind kind, int64_t lookback);

// One parameter of a lane: a matrix [rows,cols] or a bias [rows].
struct NbeatsParam {
  enum class Role : uint8_t { weight, bias, out_weight, out_bias, covariate_weight };
  std::string name;  // "blocks.0.layers.2.weight", "blocks.0.basis_parameters.bias"
  Role role = Role::weight;
  int64_t stack = 0, block = 0, layer = 0;
  int64_t rows = 0, cols = 0;  // cols is 1 for a bias
  int64_t offset = 0;          // in elements, within the lane's slab
  int64_t elements() const { return rows * cols; }
};

// Layout of a lane's slab: matrices, then biases (which have no weight decay), each aligned to 64 elements. Checkpoints
// store slabs, so the order is part of a file format.
struct NbeatsLayout {
  std::vector<NbeatsParam> params;
  std::vector<int64_t> block_params;  // per block: index in `params` of its first layer's weight
  int64_t decayed = 0, elements = 0;
  // Index of the weight or bias of layer i of a block; i == layers is the output layer.
  size_t weight_of(int64_t block, int64_t layer) const { return at(block, layer, 0); }
  size_t bias_of(int64_t block, int64_t layer) const { return at(block, layer, 1); }
  // Only with covariates: the weight of the first layer for them. Its bias is the end of the first layer's.
  size_t covariate_weight_of(int64_t block, int64_t layers) const { return at(block, layers + 1, 0); }

 private:
  size_t at(int64_t block, int64_t layer, int64_t which) const {
    return static_cast<size_t>(block_params[static_cast<size_t>(block)] + 2 * layer + which);
  }
};
NbeatsLayout nbeats_layout(const NbeatsShape& shape);

// Size of a parameter without padding, for a lane's own lookback.
struct NbeatsSize {
  int64_t rows = 0, cols = 0;
};
NbeatsSize true_size(const NbeatsShape& shape, const NbeatsParam& param, int64_t lookback);
// Index of unpadded element (row, col) within the padded parameter.
int64_t padded_index(const NbeatsShape& shape, const NbeatsParam& param, int64_t lookback, int64_t row, int64_t col);

// Initial slab of a lane: every matrix and bias uniform in ±1/√(unpadded fan-in). A pure function of (seed, parameter,
// element), independent of padding and of other lanes.
std::vector<float> draw_lane(const NbeatsShape& shape, const NbeatsLayout& layout, uint64_t seed, int64_t lookback);

}  // namespace brim::forecast
