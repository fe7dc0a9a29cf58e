// SPDX-License-Identifier: Apache-2.0
// Rolling training: an ensemble is fitted again and again along the series, each time on what was known at a cutoff,
// and forecasts what came after it. Every fit of every member is a lane; lanes that do not depend on each other run
// side by side in as few waves as the memory limit allows. What is finished stays on disk: a run that was killed goes
// on and gives the same bytes.
#pragma once
#include <atomic>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "forecast/ensemble.h"
#include "forecast/fold_grid.h"

namespace brim::forecast {

// One fit of all members, and the cutoffs that are forecast with it.
struct RollTraining {
  enum class Kind : uint8_t {
    calibration,  // before the first fold: what shrinkage and intervals of the first folds are fitted on
    anchor,       // a base for others, which forecasts nothing itself
    fold,
  };
  Kind kind = Kind::fold;
  Fold fold;                     // what it may learn from
  std::vector<int64_t> cutoffs;  // it forecasts from
  int64_t base = -1;             // the training it starts from; -1: its own seed
  bool keeps_moments = false;    // of its base (chain)
  int64_t steps = 0, steps_before = 0;
  int64_t round = 0;  // trainings of a round run side by side, after those of the rounds before
};

struct RollPlan {
  std::vector<Fold> folds;
  std::vector<RollTraining> trainings;
  std::vector<int64_t> training_of;  // by fold
  int64_t rounds = 0, steps = 0;     // steps of a training that starts from its seed
  bool is_base(size_t training) const;
};
// `first_cutoff`: of an earlier run that is extended. Throws usage for settings that rolling does not heed.
RollPlan plan_roll(const ForecastSettings& settings, const SeriesStore& series, const NbeatsModel& members,
                   std::optional<int64_t> first_cutoff = {});

// A series and the point after its last known one at a cutoff; left out are series that begin later, ended before, or
// have nothing the shortest lookback could see.
std::vector<ops::WindowPick> windows_at(const SeriesStore& series, const NbeatsModel& members, const Fold& trained,
                                        int64_t cutoff);

struct RolledLane {
  bool done = false, failed = false;
  float last_loss = 0;
  std::vector<float> curve;
  std::vector<float> forecasts;  // [cutoff][window of windows_at][horizon], as the lane gave them
};

// What this process did when, in seconds from the run's begin.
struct RollSpan {
  enum class What : uint8_t { training, forecasting, saving };
  What what;
  double begin, end;
  int64_t lanes;  // of the wave
};

struct RollRun {
  std::vector<RolledLane> lanes;  // [training][member]
  EnsemblePlan memory;            // all lanes in as few waves as can be
  int64_t waves = 0;              // that this process computed
  int64_t resumed_lanes = 0;      // that were there already
  double seconds = 0;             // of training, by this process
  double busy_seconds = 0;        // of these the device computed
  bool interrupted = false;
  std::vector<RollSpan> timeline;
};
struct RollProgress {
  int64_t lanes_done = 0, lanes = 0;  // of the run
  int64_t wave_lanes = 0, step = 0, steps = 0;
  double loss = 0;
};

// Goes on with what `state` holds, a directory of this run alone. Throws usage where it holds a run with other settings
// or other data, naming what differs; diverged where a fold has no lane left. With `keep_models` the models of each
// training are in directories beside it, models/CUTOFF.
RollRun run_roll(EnsembleDevice& on, const ForecastSettings& settings, const SeriesStore& series,
                 const NbeatsModel& members, const RollPlan& plan, const std::filesystem::path& state,
                 const std::function<void(const RollProgress&)>& tell, const std::atomic<bool>* stop);

// The first cutoff of the run that `state` holds; nothing where there is none.
std::optional<int64_t> rolled_first_cutoff(const std::filesystem::path& state);

// Medians over the lanes of a training that did not fail: [window][horizon], of `windows` windows from `first` on.
std::vector<double> rolled_medians(const RollRun& run, const NbeatsModel& members, size_t training, size_t first,
                                   size_t windows);

}  // namespace brim::forecast
