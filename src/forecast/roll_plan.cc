// SPDX-License-Identifier: Apache-2.0
// Trainings of a rolling run and the windows they forecast. The run is in roll.cc.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "forecast/roll.h"

namespace brim::forecast {
namespace {

// Number of windows before the first fold for fitting shrinkage and the first intervals; all outcomes are known by
// then.
int64_t calibration_cutoffs(int64_t series) { return std::clamp<int64_t>(400 / std::max<int64_t>(series, 1), 4, 20); }

void set_window(Fold& fold, const ForecastSettings& s) {
  fold.train_to = fold.cutoff - s.gap;
  if (s.window > 0) fold.train_from = fold.train_to - s.window + 1;
}

// Steps of the first and the last value of all series.
struct StepRange {
  int64_t first = std::numeric_limits<int64_t>::max(), last = std::numeric_limits<int64_t>::min();
};

StepRange range_of(const SeriesStore& series) {
  StepRange range;
  for (int64_t i = 0; i < series.size(); ++i) {
    range.first = std::min(range.first, series.first_step(i));
    range.last = std::max(range.last, series.last_step(i));
  }
  return range;
}

std::vector<Fold> folds_of(const ForecastSettings& s, const StepRange& range, std::optional<int64_t> first_cutoff) {
  FoldGridOptions grid;
  grid.horizon = s.horizon;
  grid.folds = s.folds;
  grid.step = s.step;
  grid.refit = s.refit;
  grid.window = s.window;
  grid.gap = s.gap;
  if (first_cutoff) {
    const int64_t latest = range.last - s.horizon;
    grid.folds = std::max<int64_t>(1, (latest - *first_cutoff) / s.step + 1);
    grid.last_cutoff = *first_cutoff + (grid.folds - 1) * s.step;
  }
  return fold_grid(grid, range.first, range.last);
}

// The training before the first fold; without cutoffs if the series begin too late for it.
RollTraining calibration_of(const ForecastSettings& s, int64_t series, const StepRange& range, const Fold& opening) {
  RollTraining calibration;
  calibration.kind = RollTraining::Kind::calibration;
  const int64_t seen = opening.cutoff - s.horizon;  // last cutoff with an outcome known at the first fold
  calibration.fold.cutoff = std::max(seen - calibration_cutoffs(series) + 1, range.first + s.gap + 1);
  set_window(calibration.fold, s);
  for (int64_t cutoff = calibration.fold.cutoff; cutoff <= seen; ++cutoff) calibration.cutoffs.push_back(cutoff);
  return calibration;
}

std::vector<int64_t> known_at(const Fold& fold, int64_t horizon, const SeriesStore& series) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < series.size(); ++i)
    lengths.push_back(
        cut_series(fold, horizon, series.first_step(i), static_cast<int64_t>(series.series(i).size())).train_end);
  return lengths;
}

}  // namespace

std::vector<int64_t> known_at_first_training(const ForecastSettings& s, const SeriesStore& series,
                                             std::optional<int64_t> first_cutoff) {
  const StepRange range = range_of(series);
  const Fold opening = folds_of(s, range, first_cutoff).front();
  const RollTraining calibration = calibration_of(s, series.size(), range, opening);
  return known_at(calibration.cutoffs.empty() ? opening : calibration.fold, s.horizon, series);
}

bool RollPlan::is_base(size_t training) const {
  return std::any_of(trainings.begin(), trainings.end(),
                     [&](const RollTraining& t) { return t.base == static_cast<int64_t>(training); });
}

RollPlan plan_roll(const ForecastSettings& s, const SeriesStore& series, const NbeatsModel& members,
                   std::optional<int64_t> first_cutoff) {
  RollPlan plan;
  const StepRange range = range_of(series);
  plan.folds = folds_of(s, range, first_cutoff);
  const Fold& opening = plan.folds.front();
  plan.steps = steps_of(s, known_at(opening, s.horizon, series));
  const int64_t warm = s.warm_steps > 0 ? s.warm_steps : std::max<int64_t>(1, plan.steps / 10);

  RollTraining calibration = calibration_of(s, series.size(), range, opening);
  calibration.steps = plan.steps;
  if (!calibration.cutoffs.empty()) plan.trainings.push_back(calibration);

  int64_t anchor = -1, before = -1, chained = 0;
  for (const Fold& fold : plan.folds) {
    const bool refitted = fold.trained_at == fold.index;
    if (refitted) {
      RollTraining training;
      training.fold = fold;
      training.steps = plan.steps;
      if (s.warm == WarmStart::anchor) {
        const bool due = s.anchor_every > 0 ? fold.index % s.anchor_every < s.refit : anchor < 0;
        if (anchor < 0 || due) {
          RollTraining base = training;
          base.kind = RollTraining::Kind::anchor;
          anchor = static_cast<int64_t>(plan.trainings.size());
          plan.trainings.push_back(base);
        }
        training.base = anchor;
        training.round = 1;
        training.steps = warm;
      } else if (s.warm == WarmStart::chain && before >= 0) {
        training.base = before;
        training.keeps_moments = true;
        training.steps = warm;
        training.steps_before = plan.steps + warm * (chained - 1);
        training.round = chained;
      }
      ++chained;
      before = static_cast<int64_t>(plan.trainings.size());
      plan.trainings.push_back(training);
    }
    plan.trainings[static_cast<size_t>(before)].cutoffs.push_back(fold.cutoff);
    plan.training_of.push_back(before);
  }
  for (const RollTraining& training : plan.trainings) plan.rounds = std::max(plan.rounds, training.round + 1);
  BRIM_CHECK(!members.lanes.empty(), "no members");
  return plan;
}

std::vector<ops::WindowPick> windows_at(const SeriesStore& series, const NbeatsModel& members, const Fold& trained,
                                        int64_t cutoff) {
  int64_t shortest = std::numeric_limits<int64_t>::max();
  for (const NbeatsLane& lane : members.lanes) shortest = std::min<int64_t>(shortest, lane.spec.lookback);
  std::vector<ops::WindowPick> windows;
  for (int64_t i = 0; i < series.size(); ++i) {
    const auto values = series.series(i);
    const int64_t first_step = series.first_step(i), known = cutoff - first_step + 1;
    const int64_t first = trained.train_from < first_step ? 0 : trained.train_from - first_step;
    if (known - first < 2 || known > static_cast<int64_t>(values.size())) continue;
    const int64_t from = std::max(first, known - shortest);
    const auto seen = values.subspan(static_cast<size_t>(from), static_cast<size_t>(known - from));
    if (std::all_of(seen.begin(), seen.end(), [](float v) { return std::isnan(v); })) continue;
    windows.push_back({static_cast<int32_t>(i), static_cast<int32_t>(known)});
  }
  return windows;
}

}  // namespace brim::forecast
