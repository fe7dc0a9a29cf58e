// SPDX-License-Identifier: Apache-2.0
// Reads and writes N-BEATS ensembles as model directories: config.json describes the lanes, model.safetensors holds
// their unpadded parameters as lanes.3.blocks.0.layers.2.weight and lanes.3.blocks.0.basis_parameters.bias. First-layer
// inputs and backcasts run from the newest point to the oldest; outputs are the backcast, then the forecast of each
// quantile. Blocks with shared weights are stored once, under the first block.
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
  std::vector<float> slab;  // in the layout of lane_shape()
};

struct NbeatsModel {
  int64_t horizon = 0;
  int64_t season = 1;
  std::string freq;              // as in the data, e.g. "W"
  std::vector<float> quantiles;  // ascending; empty for point forecasts
  int64_t layers = 4, degree = 2, harmonics = 1;
  bool first_relu = true;
  // Errors of held-out horizons by step ahead, ascending, in units of interval_scale(); empty if none were held out.
  std::vector<std::vector<float>> held_out;
  // Models whose mean is the forecast: "nbeats", "theta", "ets", or only "naive" or "snaive"; empty: N-BEATS alone.
  std::vector<std::string> combined;
  bool has_baselines() const { return combined.size() > 1 || (combined.size() == 1 && combined[0] != "nbeats"); }
  CovariateSpec covariates;
  std::vector<NbeatsLane> lanes;
};

// Shape of a lane on its own.
NbeatsShape lane_shape(const NbeatsModel& model, const NbeatsLane& lane);
// Converts a lane's slab to another shape with the same stacks (e.g. a wave with a longer lookback, or back).
std::vector<float> move_lane(const NbeatsShape& from, const NbeatsShape& to, int64_t lookback,
                             std::span<const float> slab);

// Throws Error(cannot_write). config.json is written last, so a directory that contains one is complete.
void save_nbeats(const std::filesystem::path& dir, const NbeatsModel& model);
bool is_nbeats(const std::filesystem::path& dir);  // checks model_type in config.json
// Throws Error(bad_model) with the file, the key or tensor, the value and the expected value.
NbeatsModel load_nbeats(const std::filesystem::path& dir);

}  // namespace brim::forecast
