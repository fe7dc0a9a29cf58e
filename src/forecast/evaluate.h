// SPDX-License-Identifier: Apache-2.0
// Evaluates forecasts against actual values, next to baselines on the same values. Does not produce forecasts other
// than those of the baselines.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "forecast/baselines.h"
#include "forecast/metrics.h"
#include "forecast/series_store.h"

namespace brim::forecast {

struct Scores {
  double smape = 0, mase = 0, mae = 0, mape = 0;  // means over series
  double owa = 0;                                 // against Naive2 on the same values
};

struct LevelScore {
  double level = 0;                  // percent
  double coverage = 0, pinball = 0;  // share inside; mean of both bounds
};

struct BaselineScore {
  Baseline baseline;
  Scores scores;
  DieboldMariano test;  // model against baseline, on scaled errors paired by series
};

struct ForecastEvaluation {
  int64_t series = 0, points = 0, horizon = 0, season = 1;
  int64_t not_in_data = 0;    // series missing from the data
  int64_t without_scale = 0;  // series excluded from MASE: their history is constant one season apart
  Scores model, naive, snaive, naive2;
  std::vector<BaselineScore> baselines;      // all evaluated ones, naive first
  size_t best = 0;                           // index of the baseline with the lowest MASE
  double skill_naive = 0, skill_snaive = 0;  // 1 − MASE ÷ MASE of the baseline
  std::vector<LevelScore> levels;
  // Continuous ranked probability score from the point forecast as median and the interval bounds, mean over series;
  // and divided by the scale of MASE. NaN without intervals.
  double crps = 0, scaled_crps = 0;
  std::vector<double> mase_by_step;  // model only
};

// Forecasts to evaluate: steps 1 … horizon after the end of a series.
struct Forecaster {
  std::function<std::vector<double>(int64_t series, int64_t horizon)> values;
  struct Interval {
    double level;
    std::function<std::vector<double>(int64_t series, int64_t horizon)> low, high;
  };
  std::vector<Interval> intervals;
};

struct EvaluateOptions {
  int64_t season = 1;
  std::vector<Baseline> baselines;  // besides naive, seasonal naive and Naive2
  int threads = 1;
  std::function<void(int64_t done, int64_t total)> progress;  // counts series
  const std::atomic<bool>* stop = nullptr;
};

// Step of the first value of `later`, counted from 1 after the end of series `own`. Points without times directly
// follow the data.
int64_t steps_after(const SeriesStore& data, int64_t own, const SeriesStore& later, int64_t other);

// Last step after the end of a series in the data for which `actual` has a value.
int64_t longest_horizon(const SeriesStore& data, const SeriesStore& actual);

ForecastEvaluation evaluate(const SeriesStore& data, const SeriesStore& actual, const Forecaster& forecaster,
                            const EvaluateOptions& options);

}  // namespace brim::forecast
