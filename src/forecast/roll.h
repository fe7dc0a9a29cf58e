// SPDX-License-Identifier: Apache-2.0
// Rolling training: an ensemble is refitted at successive cutoffs on the data known at each, and forecasts what
// follows. Every fit of every member is a lane; independent lanes run together in as few waves as the memory limit
// allows. Finished lanes stay on disk, so a killed run resumes with byte-identical results.
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

// One fit of all members, and the cutoffs forecast with it.
struct RollTraining {
  enum class Kind : uint8_t {
    calibration,  // before the first fold: data for fitting shrinkage and the first intervals
    anchor,       // a base for other trainings; makes no forecasts itself
    fold,
  };
  Kind kind = Kind::fold;
  Fold fold;                     // visible training data
  std::vector<int64_t> cutoffs;  // cutoffs it forecasts from
  int64_t base = -1;             // training to start from; -1: initialise from the seed
  bool keeps_moments = false;    // continue with the moments of its base (chain)
  int64_t steps = 0, steps_before = 0;
  int64_t round = 0;  // trainings of a round are independent and follow those of earlier rounds
};

struct RollPlan {
  std::vector<Fold> folds;
  std::vector<RollTraining> trainings;
  std::vector<int64_t> training_of;  // indexed by fold
  int64_t rounds = 0, steps = 0;     // steps: for a training initialised from the seed
  bool is_base(size_t training) const;
};
// `first_cutoff` is set when extending an earlier run. Throws usage for settings that rolling does not support.
RollPlan plan_roll(const ForecastSettings& settings, const SeriesStore& series, const NbeatsModel& members,
                   std::optional<int64_t> first_cutoff = {});

// Points of each series that the first training of the plan may use: the choice of settings depends on these only.
std::vector<int64_t> known_at_first_training(const ForecastSettings& settings, const SeriesStore& series,
                                             std::optional<int64_t> first_cutoff = {});

// Pairs of a series and the index after its last known point at a cutoff. Skips series that start later, ended before,
// or have no points within the shortest lookback.
std::vector<ops::WindowPick> windows_at(const SeriesStore& series, const NbeatsModel& members, const Fold& trained,
                                        int64_t cutoff);

struct RolledLane {
  bool done = false, failed = false;
  float last_loss = 0;
  std::vector<float> curve;
  std::vector<float> forecasts;  // [cutoff][window of windows_at][horizon], raw output of the lane
};

// Timeline of this process, in seconds from the start of the run.
struct RollSpan {
  enum class What : uint8_t { training, forecasting, saving };
  What what;
  double begin, end;
  int64_t lanes;  // in the wave
};

struct RollRun {
  std::vector<RolledLane> lanes;  // [training][member]
  EnsemblePlan memory;            // all lanes in as few waves as possible
  int64_t waves = 0;              // computed by this process
  int64_t resumed_lanes = 0;      // already finished before
  double seconds = 0;             // training time of this process
  double busy_seconds = 0;        // device compute time
  bool interrupted = false;
  std::vector<RollSpan> timeline;
};
struct RollProgress {
  int64_t lanes_done = 0, lanes = 0;  // in the run
  int64_t wave_lanes = 0, step = 0, steps = 0;
  double loss = 0;
};

// Resumes from `state`, a directory used by this run only. Throws usage naming the difference if it holds a run with
// other settings or data; throws diverged if a fold has no lane left. With `keep_models`, the models of each training
// are saved next to it in models/CUTOFF.
RollRun run_roll(EnsembleDevice& on, const ForecastSettings& settings, const SeriesStore& series,
                 const NbeatsModel& members, const RollPlan& plan, const std::filesystem::path& state,
                 const std::function<void(const RollProgress&)>& progress, const std::atomic<bool>* stop);

// First cutoff of the run in `state`; nullopt if there is none.
std::optional<int64_t> rolled_first_cutoff(const std::filesystem::path& state);
// Sets lookbacks, history and steps, unless given, to those of the run in `state`. False if there is none.
bool take_rolled_settings(ForecastSettings& settings, const std::filesystem::path& state);

// Medians over the lanes of a training that did not fail: [window][horizon], for `windows` windows starting at `first`.
std::vector<double> rolled_medians(const RollRun& run, const NbeatsModel& members, size_t training, size_t first,
                                   size_t windows);

}  // namespace brim::forecast
