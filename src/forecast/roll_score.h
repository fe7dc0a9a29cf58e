// SPDX-License-Identifier: Apache-2.0
// What a rolling run's forecasts are worth: drawn towards the last value as far as earlier folds advise, with intervals
// from earlier errors, and measured against naive and seasonal naive fold by fold. Nothing after a cutoff counts for
// what is forecast from it.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "forecast/evaluate.h"
#include "forecast/metrics.h"
#include "forecast/roll.h"

namespace brim::forecast {

// One series from one cutoff.
struct RolledForecast {
  int64_t series = 0, known = 0;               // points of it that were known
  std::vector<double> forecast;                // by step ahead
  std::vector<std::vector<double>> low, high;  // by level; NaN while too few errors are known
  std::vector<float> actual;                   // NaN where absent
};

struct FoldScore {
  std::string cutoff;  // its time
  bool refitted = true;
  int64_t series = 0, left_out = 0, steps = 0;  // steps of the training it uses
  Scores model, naive, snaive;
  double skill_naive = 0, skill_snaive = 0;  // 1 − MASE ÷ the reference's; NaN: nothing can be said
  double coverage = 0;                       // of the first level
  std::vector<double> factors;               // λ by step ahead
};

struct SeriesScore {
  std::string id;
  int64_t folds = 0;
  double mase = 0, mae = 0, naive_mase = 0, skill_naive = 0;
};

// Of the last fold's series the best, the median or the worst, by their MASE over all folds.
struct DrawnForecast {
  const char* which;
  double mase;
  RolledForecast forecast;
};

struct RollScore {
  int64_t points = 0, horizon = 0, season = 1;
  Scores model, naive, snaive;  // means over folds and series; no OWA
  double skill_naive = 0, skill_snaive = 0;
  DieboldMariano against_naive, against_snaive;  // of the folds' mean scaled errors
  std::vector<LevelScore> levels;
  std::vector<double> mase_by_step, naive_by_step;
  std::vector<FoldScore> folds;
  std::vector<SeriesScore> series;
  std::vector<DrawnForecast> drawn;  // for plots
};

// `row` is called with every forecast, fold after fold, series after series.
RollScore score_roll(const ForecastSettings& settings, const SeriesStore& series, const NbeatsModel& members,
                     const RollPlan& plan, const RollRun& run,
                     const std::function<void(const Fold& fold, const RolledForecast& forecast)>& row);

}  // namespace brim::forecast
