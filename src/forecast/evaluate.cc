// SPDX-License-Identifier: Apache-2.0
#include "forecast/evaluate.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "forecast/baselines.h"
#include "forecast/metrics.h"
#include "io/quote_text.h"

namespace brim::forecast {
namespace {

// Actual values per step after the end of a series; missing steps are NaN.
std::vector<float> actual_steps(const SeriesStore& data, int64_t own, const SeriesStore& actual, int64_t other) {
  const auto values = actual.series(other);
  const int64_t first = steps_after(data, own, actual, other);
  const int64_t last = first + static_cast<int64_t>(values.size()) - 1;
  constexpr int64_t kFarthest = 1'000'000;
  if (last > kFarthest)
    fail(ErrorCode::bad_data, Remedy{"give actual values that follow the data"},
         "series {}: actual values end {} steps after the data (at most {})", io::quote_text(data.id(own)), last,
         kFarthest);
  std::vector<float> steps(static_cast<size_t>(std::max<int64_t>(last, 0)), std::numeric_limits<float>::quiet_NaN());
  for (int64_t h = std::max<int64_t>(first, 1); h <= last; ++h)  // the file may contain the history too
    steps[static_cast<size_t>(h - 1)] = values[static_cast<size_t>(h - first)];
  return steps;
}

class ScoreSum {
 public:
  void add(std::span<const double> forecast, std::span<const float> actual, double scale) {
    smape_.add(smape(forecast, actual));
    mase_.add(mase(forecast, actual, scale));
    mae_.add(mae(forecast, actual));
    mape_.add(mape(forecast, actual));
  }
  Scores scores() const { return {smape_.value(), mase_.value(), mae_.value(), mape_.value(), 0}; }

 private:
  Mean smape_, mase_, mae_, mape_;
};

struct LevelSum {
  Coverage coverage;
  Mean pinball;
};

}  // namespace

int64_t steps_after(const SeriesStore& data, int64_t own, const SeriesStore& later, int64_t other) {
  return later.numbered() ? later.first_step(other) : later.first_step(other) - data.last_step(own);
}

ForecastEvaluation evaluate(const SeriesStore& data, const SeriesStore& actual, const Forecaster& forecaster,
                            const EvaluateOptions& options) {
  if (!actual.numbered() && !data.numbered() && actual.frequency() != data.frequency())
    fail(ErrorCode::bad_data, Remedy{"set `freq`"}, "the frequency of the data is {}, but {} in the actual values",
         frequency_name(data.frequency()), frequency_name(actual.frequency()));
  ForecastEvaluation result;
  result.season = options.season;
  ScoreSum model, naive, snaive, naive2;
  std::vector<LevelSum> levels(forecaster.intervals.size());
  std::vector<Mean> by_step;
  for (int64_t a = 0; a < actual.size(); ++a) {
    if (options.stop != nullptr && *options.stop) fail(ErrorCode::interrupted, "interrupted");
    if (options.progress) options.progress(a, actual.size());
    const auto own = data.find(actual.id(a));
    if (!own) {
      ++result.not_in_data;
      continue;
    }
    const std::vector<float> actual_values = actual_steps(data, *own, actual, a);
    const auto present =
        std::count_if(actual_values.begin(), actual_values.end(), [](float v) { return !std::isnan(v); });
    if (present == 0)
      fail(ErrorCode::bad_data, Remedy{"give `actual` values that follow the data"},
           "series {}: no actual values after the end of the data at {}", io::quote_text(data.id(*own)),
           data.time_text(*own, static_cast<int64_t>(data.series(*own).size()) - 1));
    const auto horizon = static_cast<int64_t>(actual_values.size());
    const double scale = seasonal_scale(data.series(*own), options.season);
    result.without_scale += !(scale > 0);
    ++result.series;
    result.points += present;
    result.horizon = std::max(result.horizon, horizon);
    const std::vector<double> values = forecaster.values(*own, horizon);
    model.add(values, actual_values, scale);
    for (const auto& [sum, baseline] : {std::pair(&naive, Baseline::naive), std::pair(&snaive, Baseline::snaive),
                                        std::pair(&naive2, Baseline::naive2)})
      sum->add(forecast_baseline(baseline, data.series(*own), horizon, options.season), actual_values, scale);
    if (by_step.size() < actual_values.size()) by_step.resize(actual_values.size());
    for (size_t h = 0; h < actual_values.size(); ++h)
      by_step[h].add(std::abs(values[h] - static_cast<double>(actual_values[h])) / scale);
    for (size_t i = 0; i < levels.size(); ++i) {
      const auto& interval = forecaster.intervals[i];
      const auto low = interval.low(*own, horizon), high = interval.high(*own, horizon);
      levels[i].coverage.add(low, high, actual_values);
      const double tail = (1 - interval.level / 100) / 2;
      levels[i].pinball.add((pinball(low, actual_values, tail) + pinball(high, actual_values, 1 - tail)) / 2);
    }
  }
  if (result.series == 0)
    fail(ErrorCode::bad_data, Remedy{"use the same series ids in `actual` and the data"},
         "the actual values and the data have no series in common (first ids: {} and {})", io::quote_text(actual.id(0)),
         io::quote_text(data.id(0)));
  result.model = model.scores();
  result.naive = naive.scores();
  result.snaive = snaive.scores();
  result.naive2 = naive2.scores();
  for (Scores* s : {&result.model, &result.naive, &result.snaive, &result.naive2})
    s->owa = owa(s->smape, s->mase, result.naive2.smape, result.naive2.mase);
  result.skill_naive = skill(result.model.mase, result.naive.mase);
  result.skill_snaive = skill(result.model.mase, result.snaive.mase);
  for (size_t i = 0; i < levels.size(); ++i)
    result.levels.push_back({forecaster.intervals[i].level, levels[i].coverage.share(), levels[i].pinball.value()});
  for (const Mean& step : by_step) result.mase_by_step.push_back(step.value());
  return result;
}

}  // namespace brim::forecast
