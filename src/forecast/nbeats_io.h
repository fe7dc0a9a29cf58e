// SPDX-License-Identifier: Apache-2.0
// An ensemble of N-BEATS lanes as a model directory: config.json says what each lane is, model.safetensors holds its
// parameters without padding under lanes.3.blocks.0.layers.2.weight and lanes.3.blocks.0.basis_parameters.bias. Inputs
// of the first layer and backcasts run from the newest point to the oldest; outputs are the backcast, then the forecast
// of each quantile. Blocks that share weights are stored once, under the first of them.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "forecast/nbeats.h"

namespace brim::forecast {

const char* forecast_loss_name(ops::ForecastLoss loss);  // "smape"
std::optional<ops::ForecastLoss> forecast_loss_from_name(std::string_view name);

struct NbeatsLane {
  ops::LaneSpec spec;
  std::vector<StackSpec> stacks;
  std::vector<float> slab;  // in the layout of its own shape (lane_shape)
};

struct NbeatsModel {
  int64_t horizon = 0;
  int64_t season = 1;
  std::string freq;              // as the data's: "W"
  std::vector<float> quantiles;  // ascending; empty: a point forecast
  int64_t layers = 4, degree = 2, harmonics = 1;
  bool first_relu = true;
  std::vector<NbeatsLane> lanes;
};

// The shape a lane has alone.
NbeatsShape lane_shape(const NbeatsModel& model, const NbeatsLane& lane);
// A lane's slab as another shape of the same stacks lays it out (a wave with a longer lookback, or back).
std::vector<float> move_lane(const NbeatsShape& from, const NbeatsShape& to, int64_t lookback,
                             std::span<const float> slab);

// Throws Error(cannot_write). config.json is written last: a directory that has one is whole.
void save_nbeats(const std::filesystem::path& dir, const NbeatsModel& model);
bool is_nbeats(const std::filesystem::path& dir);  // by its config's model_type
// Throws Error(bad_model) naming the file, the key or tensor, the value and what it must be.
NbeatsModel load_nbeats(const std::filesystem::path& dir);

}  // namespace brim::forecast
