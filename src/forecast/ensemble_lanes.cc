// SPDX-License-Identifier: Apache-2.0
// Lanes of an ensemble from settings or from a trained model, and their number of steps. Training is in ensemble.cc.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "forecast/ensemble.h"

namespace brim::forecast {
namespace {

bool is_narrow(StackKind kind) { return kind == StackKind::trend || kind == StackKind::exogenous; }

// Covariates of the settings, with scaling and categories from the data. All lanes read the same points of them.
CovariateSpec covariates_of(const ForecastSettings& s, const SeriesStore& series, int64_t shortest_lookback) {
  std::vector<CalendarFeature> calendar;
  const rows::Frequency frequency = s.freq.value_or(series.frequency());
  if (s.calendar) {
    calendar = calendar_features(frequency);
    if (series.size() > 0 && series.numbered())
      fail(ErrorCode::bad_data, Remedy{"remove `calendar`, or give dates in the time column"},
           "{}: `calendar` requires dates, but the points are numbered", s.data.empty() ? "data" : s.data[0]);
    if (calendar.empty())
      fail(ErrorCode::usage, Remedy{"remove `calendar`"}, "`calendar`: no feature differs between points of {} data",
           frequency_words(frequency));
  }
  const int64_t history = std::min(shortest_lookback, std::max<int64_t>(2 * s.horizon, 8));
  CovariateSpec spec = fit_covariates(series, std::move(calendar), history);
  if (series.size() > 0 || series.covariates().size() > 0) return spec;
  for (const rows::CovariateColumn& column : s.covariate_columns()) {  // a plan without data
    spec.columns.push_back({column, {}, false, 0, 1});
    if (column.categorical) spec.columns.back().categories = {""};
  }
  return spec;
}

// A block of the future covariates comes first, unless the stacks are given with one.
std::vector<StackSpec> stacks_of(const ForecastSettings& s, bool exogenous) {
  constexpr int64_t kExogenousWidth = 256;
  std::vector<StackSpec> stacks;
  const auto given = std::count(s.stack_types.begin(), s.stack_types.end(), StackKind::exogenous);
  if (given > 0 && !exogenous)
    fail(ErrorCode::usage, Remedy{"set `future_columns` or `calendar`"},
         "`stack_types`: exogenous stacks require future covariates");
  if (!std::is_partitioned(s.stack_types.begin(), s.stack_types.end(),
                           [](StackKind kind) { return kind == StackKind::exogenous; }))
    fail(ErrorCode::usage, Remedy{"list exogenous first: exogenous,trend,seasonality"},
         "`stack_types`: exogenous stacks must come before the others");
  if (given == static_cast<int64_t>(s.stack_types.size()))
    fail(ErrorCode::usage, Remedy{"add a generic stack"}, "`stack_types`: at least one stack must not be exogenous");
  if (exogenous && given == 0)
    stacks.push_back({StackKind::exogenous, 1, s.widths.empty() ? kExogenousWidth : s.widths[0], false});
  for (size_t i = 0; i < s.stack_types.size(); ++i) {
    // The published interpretable models use wide seasonal blocks and narrow trend blocks.
    const int64_t width = !s.widths.empty() ? s.widths[0] : is_narrow(s.stack_types[i]) ? 256 : 2048;
    stacks.push_back({s.stack_types[i], s.n_blocks[i], width, s.shared_weights.value_or(false)});
  }
  return stacks;
}

}  // namespace

NbeatsModel ensemble_of(const ForecastSettings& s, const SeriesStore& series) {
  NbeatsModel model;
  model.horizon = s.horizon;
  model.season = season_for(s, series.frequency());
  model.freq = series.numbered() ? "index" : frequency_name(series.frequency());
  model.layers = s.widths.empty() ? 4 : static_cast<int64_t>(s.widths.size());
  model.degree = s.n_basis;
  model.harmonics = s.n_harmonics;
  if (s.losses[0] == ops::ForecastLoss::quantile) {
    model.quantiles = {0.5F};
    for (const double level : interval_levels(s))
      for (const double q : {50 - level / 2, 50 + level / 2}) model.quantiles.push_back(static_cast<float>(q / 100));
    std::sort(model.quantiles.begin(), model.quantiles.end());
    model.quantiles.erase(std::unique(model.quantiles.begin(), model.quantiles.end()), model.quantiles.end());
  }
  std::vector<int64_t> lookbacks;
  if (s.input_size > 0) lookbacks = {s.input_size};
  for (const int64_t horizons : s.lookbacks) lookbacks.push_back(horizons * s.horizon);
  model.covariates = covariates_of(s, series, *std::min_element(lookbacks.begin(), lookbacks.end()));
  const std::vector<StackSpec> stacks = stacks_of(s, model.covariates.shape(s.horizon).future > 0);
  for (int64_t repeat = 0; repeat < s.repeats; ++repeat)
    for (const ops::ForecastLoss loss : s.losses)
      for (const int64_t lookback : lookbacks) {
        if (loss == ops::ForecastLoss::mase && model.season >= lookback)
          fail(ErrorCode::usage, Remedy{"set longer `lookbacks` or other `losses`"},
               "`losses=mase`: a window of {} points is not longer than a season of {}", lookback, model.season);
        NbeatsLane lane;
        lane.spec.seed =
            ops::mixed_bits(static_cast<uint64_t>(s.seed) * 0x9E3779B97F4A7C15ULL + model.lanes.size() + 1);
        lane.spec.lookback = static_cast<int32_t>(lookback);
        lane.spec.history =
            static_cast<int32_t>(std::max(1.0, std::round(s.history_size * static_cast<double>(s.horizon))));
        lane.spec.season = static_cast<int32_t>(model.season);
        lane.spec.loss = loss;
        lane.spec.scaler = s.scaler;
        lane.stacks = stacks;
        model.lanes.push_back(std::move(lane));
      }
  for (const StackSpec& stack : model.lanes[0].stacks)
    if (stack.width % 8 != 0) fail(ErrorCode::usage, "`mlp_units={}`: must be multiples of 8", stack.width);
  return model;
}

void take_shape(ForecastSettings& s, const NbeatsModel& from) {
  const std::pair<const char*, bool> given[] = {
      {"horizon", s.horizon > 0 && s.horizon != from.horizon},
      {"lookbacks", !s.lookbacks.empty()},
      {"input_size", s.input_size > 0},
      {"losses", !s.losses.empty()},
      {"stack_types", !s.stack_types.empty()},
      {"n_blocks", !s.n_blocks.empty()},
      {"mlp_units", !s.widths.empty()},
      {"repeats", s.given.contains("repeats")},
      {"shared_weights", s.given.contains("shared_weights")},
      {"n_basis", s.given.contains("n_basis")},
      {"n_harmonics", s.given.contains("n_harmonics")},
      {"scaler_type", s.given.contains("scaler_type")},
      {"held_out", s.given.contains("held_out")},
      {"level", !from.quantiles.empty() && !s.level.empty()},
      {"calendar", s.calendar && from.covariates.calendar.empty()},
  };
  for (const auto& [key, is_given] : given)
    if (is_given)
      fail(ErrorCode::usage, Remedy{fmt::format("omit `{}`, or train without `from`", key)},
           "`{}`: fixed by the model in {}", key, s.from);
  s.horizon = from.horizon;
  if (s.history_size == 0)
    s.history_size = static_cast<double>(from.lanes[0].spec.history) / static_cast<double>(from.horizon);
  for (const NbeatsLane& lane : from.lanes) {
    if (std::find(s.losses.begin(), s.losses.end(), lane.spec.loss) == s.losses.end())
      s.losses.push_back(lane.spec.loss);
    const int64_t horizons = lane.spec.lookback / from.horizon;
    if (horizons * from.horizon != lane.spec.lookback)
      s.input_size = lane.spec.lookback;
    else if (std::find(s.lookbacks.begin(), s.lookbacks.end(), horizons) == s.lookbacks.end())
      s.lookbacks.push_back(horizons);
  }
  if (s.input_size > 0) s.lookbacks.clear();
  for (const StackSpec& stack : from.lanes[0].stacks) {
    s.stack_types.push_back(stack.kind);
    s.n_blocks.push_back(stack.blocks);
  }
  s.widths.assign(static_cast<size_t>(from.layers), from.lanes[0].stacks.back().width);
}

NbeatsModel continued_ensemble(const ForecastSettings& s, const SeriesStore& series, NbeatsModel model) {
  const auto refuse = [&](const char* key, int64_t given, int64_t own) {
    if (given > 0 && given != own)
      fail(ErrorCode::usage, Remedy{fmt::format("omit `{}`, or train without `from`", key)},
           "`{}={}`: the model in {} has {}", key, given, s.from, own);
  };
  refuse("season", s.season, model.season);
  const std::string freq = series.numbered() ? "index" : frequency_name(series.frequency());
  if (freq != model.freq)
    fail(ErrorCode::bad_data, Remedy{"give data of the same frequency, or train without `from`"},
         "{}: the frequency is {}, but the model in {} was trained on {}", s.data.empty() ? "data" : s.data[0], freq,
         s.from, model.freq);
  for (NbeatsLane& lane : model.lanes) {
    // Other windows than in the training before.
    lane.spec.seed = ops::mixed_bits(lane.spec.seed + 0x9E3779B97F4A7C15ULL * static_cast<uint64_t>(s.seed + 1));
    lane.spec.history =
        static_cast<int32_t>(std::max(1.0, std::round(s.history_size * static_cast<double>(model.horizon))));
  }
  return model;
}

int64_t steps_of(const ForecastSettings& s, const SeriesStore& series) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < series.size(); ++i) lengths.push_back(static_cast<int64_t>(series.series(i).size()));
  return steps_of(s, lengths);
}

int64_t steps_of(const ForecastSettings& s, std::span<const int64_t> lengths) {
  if (s.max_steps > 0) return s.max_steps;
  double windows = 0;
  for (const int64_t length : lengths)
    windows += std::clamp(static_cast<double>(length) - 1, 0.0, s.history_size * static_cast<double>(s.horizon));
  return std::max<int64_t>(1, std::llround(s.epochs * windows / static_cast<double>(s.windows_per_step())));
}

}  // namespace brim::forecast
