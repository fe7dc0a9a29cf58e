// SPDX-License-Identifier: Apache-2.0
// The training of one wave: its lanes from where they start to their last step, with a checkpoint from which a run that
// was killed goes on to the same bits.
#pragma once
#include <atomic>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "forecast/settings.h"
#include "forecast/wave.h"

namespace brim::forecast {

// The rate of a step: halved num_lr_decays times, evenly over the run.
double rate_of(const ForecastSettings& settings, int64_t step, int64_t steps);

// Parameters and AdamW's moments of a lane, as the wave's shape lays them out.
struct LaneState {
  std::vector<float> slab, first, second;
};

struct WaveTraining {
  WaveSpec spec;
  std::vector<int64_t> lanes;        // which of the run's they are
  std::vector<LaneCutoffs> cutoffs;  // of each lane, where spec.own_cutoffs
  std::vector<LaneState> start;      // of each lane; none, or an empty slab: drawn from its seed; no moments: zero
  int64_t steps = 0;
  int64_t steps_before = 0;          // updates the moments have seen
  std::filesystem::path checkpoint;  // empty: none is written
  std::string owner;                 // of the checkpoint
  bool keep_moments = false;         // of what was trained
  // Windows whose outcome training does not see (spec.validation_windows of them are forecast at a time), for all lanes
  // or of each its own. Where there are some a lane ends as it was when they went best.
  std::vector<std::vector<ops::WindowPick>> validation;
};

struct TrainedLane {
  bool failed = false;       // its gradients were no numbers for twenty steps in a row
  float last_loss = 0;       // NaN: it failed
  std::vector<float> curve;  // mean losses of kCurveSteps steps each
  int64_t best_step = -1;    // where it was validated
  double best_error = 0;     // there: mean of |error| ÷ the series' mean change
  LaneState state;
};
constexpr int64_t kCurveSteps = 64;

struct TrainedWave {
  std::vector<TrainedLane> lanes;
  double seconds = 0;
  double busy_seconds = 0;   // of these the device computed
  bool interrupted = false;  // a checkpoint holds where it stands
};

// `tell` is called with steps done and the mean loss of the lanes that have not failed; where all have, the wave ends.
TrainedWave train_wave(device::Device& device, const ForecastSettings& settings, const SeriesStore& series,
                       const WaveTraining& job, memory::PlannedMemory* planned,
                       const std::function<void(int64_t step, double loss)>& tell, const std::atomic<bool>* stop);

// The lanes of a checkpoint that a killed run left; none where there is none of this owner.
std::vector<int64_t> checkpointed_lanes(const std::filesystem::path& checkpoint, const std::string& owner);

}  // namespace brim::forecast
