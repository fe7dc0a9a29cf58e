// SPDX-License-Identifier: Apache-2.0
// Trains one wave of lanes, with checkpoints from which a killed run resumes bit-identically. Splitting lanes into
// waves is the caller's job.
#pragma once
#include <atomic>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "forecast/settings.h"
#include "forecast/wave.h"

namespace brim::forecast {

// Learning rate of a step: halved num_lr_decays times at equal intervals.
double rate_of(const ForecastSettings& settings, int64_t step, int64_t steps);

// Parameters and AdamW moments of a lane in the layout of the wave's shape.
struct LaneState {
  std::vector<float> slab, first, second;
};

struct WaveTraining {
  WaveSpec spec;
  std::vector<int64_t> lanes;        // indices within the run
  std::vector<LaneCutoffs> cutoffs;  // per lane, if spec.own_cutoffs
  // Per lane. If missing or with an empty slab, weights are drawn from the lane's seed; missing moments are zero.
  std::vector<LaneState> start;
  int64_t steps = 0;
  int64_t steps_before = 0;          // updates already included in the moments
  std::filesystem::path checkpoint;  // empty: no checkpoints
  std::string owner;                 // fingerprint in the checkpoint
  bool keep_moments = false;         // return the AdamW moments too
  // Held-out windows, shared by all lanes or one list per lane; spec.validation_windows are forecast per pass. If
  // present, each lane keeps its best weights on them.
  std::vector<std::vector<ops::WindowPick>> validation;
};

struct TrainedLane {
  bool failed = false;       // gradients were not finite for twenty steps in a row
  float last_loss = 0;       // NaN if failed
  std::vector<float> curve;  // mean loss per kCurveSteps steps
  int64_t best_step = -1;    // -1 if not validated
  double best_error = 0;     // at best_step: mean of |error| ÷ mean change of the series
  LaneState state;
};
constexpr int64_t kCurveSteps = 64;

struct TrainedWave {
  std::vector<TrainedLane> lanes;
  double seconds = 0;
  double busy_seconds = 0;   // device compute time
  bool interrupted = false;  // progress is in the checkpoint
};

// `progress` receives the completed steps and the mean loss of the lanes that have not failed. The wave ends if all
// fail.
TrainedWave train_wave(device::Device& device, const ForecastSettings& settings, const SeriesStore& series,
                       const WaveTraining& job, memory::PlannedMemory* planned,
                       const std::function<void(int64_t step, double loss)>& progress, const std::atomic<bool>* stop);

// Lanes in a checkpoint left by a killed run; empty if there is none for this owner.
std::vector<int64_t> checkpointed_lanes(const std::filesystem::path& checkpoint, const std::string& owner);

}  // namespace brim::forecast
