// SPDX-License-Identifier: Apache-2.0
// Scores the forecasts of a rolling run: shrinks them towards the last value with factors fitted on earlier folds, adds
// intervals from earlier errors, and compares with naive and seasonal naive per fold. Uses no data after a cutoff for
// forecasts made at it.
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
  int64_t series = 0, known = 0;               // known: number of known points
  std::vector<double> forecast;                // by step ahead
  std::vector<std::vector<double>> low, high;  // by level; NaN while there are too few known errors
  std::vector<float> actual;                   // NaN if missing
};

struct FoldScore {
  std::string cutoff;  // as a time
  bool refitted = true;
  int64_t series = 0, left_out = 0, steps = 0;  // steps of the training used
  Scores model, naive, snaive;
  std::vector<Scores> fitted;                // settings.baselines, in their order
  double skill_naive = 0, skill_snaive = 0;  // 1 − MASE ÷ MASE of the baseline; NaN if undefined
  double coverage = 0;                       // at the first level
  std::vector<double> factors;               // λ by step ahead
};

struct SeriesScore {
  std::string id;
  int64_t folds = 0;
  double mase = 0, mae = 0, naive_mase = 0, skill_naive = 0;
};

// The best, median or worst series of the last fold, by MASE over all folds.
struct DrawnForecast {
  const char* which;
  double mase;
  RolledForecast forecast;
};

struct RollScore {
  int64_t points = 0, horizon = 0, season = 1;
  Scores model, naive, snaive;  // means over folds and series; no OWA
  double skill_naive = 0, skill_snaive = 0;
  DieboldMariano against_naive, against_snaive;  // on mean scaled errors per fold
  std::vector<BaselineScore> baselines;          // naive, seasonal naive, then the fitted ones
  size_t best = 0;                               // the one with the lowest MASE
  double crps = 0, scaled_crps = 0;              // NaN without intervals
  std::vector<LevelScore> levels;
  std::vector<double> mase_by_step, naive_by_step;
  std::vector<FoldScore> folds;
  std::vector<SeriesScore> series;
  std::vector<DrawnForecast> drawn;  // for plots
};

// `row` is called for every forecast, ordered by fold and series.
RollScore score_roll(const ForecastSettings& settings, const SeriesStore& series, const NbeatsModel& members,
                     const RollPlan& plan, const RollRun& run,
                     const std::function<void(const Fold& fold, const RolledForecast& forecast)>& row);

}  // namespace brim::forecast
