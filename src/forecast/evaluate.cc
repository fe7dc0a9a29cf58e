// SPDX-License-Identifier: Apache-2.0
#include "forecast/evaluate.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "forecast/baseline_choice.h"
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
  // Returns the scaled error.
  double add(std::span<const double> forecast, std::span<const float> actual, double scale) {
    const double scaled = mase(forecast, actual, scale);
    smape_.add(smape(forecast, actual));
    mase_.add(scaled);
    mae_.add(mae(forecast, actual));
    mape_.add(mape(forecast, actual));
    return scaled;
  }
  Scores scores() const { return {smape_.value(), mase_.value(), mae_.value(), mape_.value(), 0}; }

 private:
  Mean smape_, mase_, mae_, mape_;
};

struct LevelSum {
  Coverage coverage;
  Mean pinball;
};

struct BaselineSum {
  Baseline baseline;
  ScoreSum sum;
  std::vector<double> differences;            // scaled error of the model minus that of the baseline, by series
  std::vector<std::vector<double>> prepared;  // forecasts by series of the data; empty: computed when needed
};

class Evaluator {
 public:
  Evaluator(const SeriesStore& data, const SeriesStore& actual, const Forecaster& forecaster,
            const EvaluateOptions& options)
      : data_(data), actual_(actual), forecaster_(forecaster), options_(options), levels_(forecaster.intervals.size()) {
    for (const Baseline b : {Baseline::naive, Baseline::snaive, Baseline::naive2})
      baselines_.push_back({b, {}, {}, {}});
    if (options.baselines.empty()) return;
    BaselineOptions how{longest_horizon(data, actual), options.season, options.threads, options.progress, options.stop};
    for (const Baseline b : options.baselines)
      if (b == Baseline::theta || b == Baseline::ets)
        baselines_.push_back({b, {}, {}, forecast_all(b, data, how).values});
  }

  ForecastEvaluation run() {
    result_.season = options_.season;
    for (int64_t a = 0; a < actual_.size(); ++a) {
      if (options_.stop != nullptr && *options_.stop) fail(ErrorCode::interrupted, "interrupted");
      if (options_.progress) options_.progress(a, actual_.size());
      if (const auto own = data_.find(actual_.id(a)))
        add_series(*own, a);
      else
        ++result_.not_in_data;
    }
    if (result_.series == 0)
      fail(ErrorCode::bad_data, Remedy{"use the same series ids in `actual` and the data"},
           "the actual values and the data have no series in common (first ids: {} and {})",
           io::quote_text(actual_.id(0)), io::quote_text(data_.id(0)));
    finish();
    return std::move(result_);
  }

 private:
  void add_series(int64_t own, int64_t a) {
    const std::vector<float> actual = actual_steps(data_, own, actual_, a);
    const auto present = std::count_if(actual.begin(), actual.end(), [](float v) { return !std::isnan(v); });
    if (present == 0)
      fail(ErrorCode::bad_data, Remedy{"give `actual` values that follow the data"},
           "series {}: no actual values after the end of the data at {}", io::quote_text(data_.id(own)),
           data_.time_text(own, static_cast<int64_t>(data_.series(own).size()) - 1));
    const auto horizon = static_cast<int64_t>(actual.size());
    const double scale = seasonal_scale(data_.series(own), options_.season);
    result_.without_scale += !(scale > 0);
    ++result_.series;
    result_.points += present;
    result_.horizon = std::max(result_.horizon, horizon);
    const std::vector<double> values = forecaster_.values(own, horizon);
    const double scaled = model_.add(values, actual, scale);
    for (BaselineSum& b : baselines_) {
      std::vector<double> other = b.prepared.empty()
                                      ? forecast_baseline(b.baseline, data_.series(own), horizon, options_.season)
                                      : b.prepared[static_cast<size_t>(own)];
      other.resize(actual.size());
      if (const double d = scaled - b.sum.add(other, actual, scale); std::isfinite(d)) b.differences.push_back(d);
    }
    if (by_step_.size() < actual.size()) by_step_.resize(actual.size());
    for (size_t h = 0; h < actual.size(); ++h)
      by_step_[h].add(std::abs(values[h] - static_cast<double>(actual[h])) / scale);
    if (!levels_.empty()) add_intervals(own, values, actual, scale);
  }

  void add_intervals(int64_t own, const std::vector<double>& values, const std::vector<float>& actual, double scale) {
    const auto horizon = static_cast<int64_t>(actual.size());
    Crps crps;
    crps.add(0.5, pinball(values, actual, 0.5));
    for (size_t i = 0; i < levels_.size(); ++i) {
      const auto& interval = forecaster_.intervals[i];
      const auto low = interval.low(own, horizon), high = interval.high(own, horizon);
      levels_[i].coverage.add(low, high, actual);
      const double tail = (1 - interval.level / 100) / 2, below = pinball(low, actual, tail),
                   above = pinball(high, actual, 1 - tail);
      levels_[i].pinball.add((below + above) / 2);
      crps.add(tail, below);
      crps.add(1 - tail, above);
    }
    const double score = crps.value();
    crps_.add(score);
    if (scale > 0) scaled_crps_.add(score / scale);
  }

  void finish() {
    result_.model = model_.scores();
    for (const BaselineSum& b : baselines_)
      result_.baselines.push_back({b.baseline, b.sum.scores(), diebold_mariano(b.differences, 0)});
    const Scores naive2 = result_.baselines[2].scores;
    result_.model.owa = owa(result_.model.smape, result_.model.mase, naive2.smape, naive2.mase);
    for (size_t i = 0; i < result_.baselines.size(); ++i) {
      Scores& s = result_.baselines[i].scores;
      s.owa = owa(s.smape, s.mase, naive2.smape, naive2.mase);
      if (s.mase < result_.baselines[result_.best].scores.mase) result_.best = i;
    }
    result_.naive = result_.baselines[0].scores;
    result_.snaive = result_.baselines[1].scores;
    result_.naive2 = result_.baselines[2].scores;
    result_.skill_naive = skill(result_.model.mase, result_.naive.mase);
    result_.skill_snaive = skill(result_.model.mase, result_.snaive.mase);
    for (size_t i = 0; i < levels_.size(); ++i)
      result_.levels.push_back(
          {forecaster_.intervals[i].level, levels_[i].coverage.share(), levels_[i].pinball.value()});
    result_.crps = crps_.value();
    result_.scaled_crps = scaled_crps_.value();
    for (const Mean& step : by_step_) result_.mase_by_step.push_back(step.value());
  }

  const SeriesStore &data_, &actual_;
  const Forecaster& forecaster_;
  const EvaluateOptions& options_;
  ForecastEvaluation result_;
  ScoreSum model_;
  std::vector<BaselineSum> baselines_;
  std::vector<LevelSum> levels_;
  Mean crps_, scaled_crps_;
  std::vector<Mean> by_step_;
};

}  // namespace

int64_t steps_after(const SeriesStore& data, int64_t own, const SeriesStore& later, int64_t other) {
  return later.numbered() ? later.first_step(other) : later.first_step(other) - data.last_step(own);
}

int64_t longest_horizon(const SeriesStore& data, const SeriesStore& actual) {
  int64_t longest = 1;
  for (int64_t a = 0; a < actual.size(); ++a)
    if (const auto own = data.find(actual.id(a)))
      longest = std::max(longest, static_cast<int64_t>(actual_steps(data, *own, actual, a).size()));
  return longest;
}

ForecastEvaluation evaluate(const SeriesStore& data, const SeriesStore& actual, const Forecaster& forecaster,
                            const EvaluateOptions& options) {
  if (!actual.numbered() && !data.numbered() && actual.frequency() != data.frequency())
    fail(ErrorCode::bad_data, Remedy{"set `freq`"}, "the frequency of the data is {}, but {} in the actual values",
         frequency_name(data.frequency()), frequency_name(actual.frequency()));
  return Evaluator(data, actual, forecaster, options).run();
}

}  // namespace brim::forecast
