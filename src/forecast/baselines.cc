// SPDX-License-Identifier: Apache-2.0
#include "forecast/baselines.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/error.h"
#include "forecast/ets.h"
#include "forecast/seasonal.h"
#include "forecast/theta.h"

namespace brim::forecast {
namespace {

// Fills gaps with the previous value; leading gaps take the first present value.
std::vector<double> without_gaps(std::span<const float> history) {
  std::vector<double> values(history.begin(), history.end());
  const auto present = std::find_if(values.begin(), values.end(), [](double v) { return !std::isnan(v); });
  BRIM_CHECK(present != values.end(), "none of {} values is present", values.size());
  std::fill(values.begin(), present, *present);
  for (size_t i = 1; i < values.size(); ++i)
    if (std::isnan(values[i])) values[i] = values[i - 1];
  return values;
}

std::vector<double> seasonal_naive(std::span<const float> history, int64_t horizon, int64_t season) {
  const std::vector<double> filled = without_gaps(history);
  const auto n = static_cast<int64_t>(history.size());
  std::vector<double> out;
  for (int64_t h = 0; h < horizon; ++h) {
    int64_t at = n - season + h % season;
    // A missing point falls back one more season, or to the nearest value if there is no earlier season.
    while (at >= 0 && std::isnan(history[static_cast<size_t>(at)])) at -= season;
    out.push_back(at >= 0 ? static_cast<double>(history[static_cast<size_t>(at)]) : filled.back());
  }
  return out;
}

// Theta or ETS on the last points, or snaive if there are too few.
std::vector<double> fitted(Baseline baseline, std::span<const float> history, int64_t horizon, int64_t season) {
  const auto recent = history.last(std::min<size_t>(history.size(), kFittedPoints));
  const int64_t fewest = baseline == Baseline::theta ? kThetaPoints : kEtsPoints;
  if (static_cast<int64_t>(recent.size()) < fewest ||
      std::all_of(recent.begin(), recent.end(), [](float v) { return std::isnan(v); }))
    return forecast_baseline(Baseline::snaive, history, horizon, season);
  const std::vector<double> values = without_gaps(recent);
  std::vector<double> out = baseline == Baseline::theta ? forecast_theta(values, horizon, season)
                                                        : forecast_ets(values, horizon, season).values;
  if (std::all_of(out.begin(), out.end(), [](double v) { return std::isfinite(v); })) return out;
  return forecast_baseline(Baseline::snaive, history, horizon, season);
}

struct BaselineName {
  const char *name, *column, *title;
};
constexpr BaselineName kBaselineNames[] = {
    {"naive", "Naive", "naive"},    {"snaive", "SeasonalNaive", "seasonal naive"},
    {"naive2", "Naive2", "Naive2"}, {"theta", "AutoTheta", "Theta"},
    {"ets", "AutoETS", "ETS"},      {"auto", "Auto", "auto"}};
const BaselineName& names_of(Baseline baseline) { return kBaselineNames[static_cast<size_t>(baseline)]; }

}  // namespace

const char* baseline_name(Baseline baseline) { return names_of(baseline).name; }

std::optional<Baseline> baseline_of(std::string_view name) {
  for (size_t i = 0; i < std::size(kBaselineNames); ++i)
    if (name == kBaselineNames[i].name) return static_cast<Baseline>(i);
  return std::nullopt;
}

const char* column_of(Baseline baseline) { return names_of(baseline).column; }

const char* baseline_title(Baseline baseline) { return names_of(baseline).title; }

std::vector<double> forecast_baseline(Baseline baseline, std::span<const float> history, int64_t horizon,
                                      int64_t season) {
  BRIM_CHECK(baseline != Baseline::automatic, "the choice needs other forecasts");
  if (baseline == Baseline::theta || baseline == Baseline::ets) return fitted(baseline, history, horizon, season);
  if (baseline == Baseline::snaive && season > 1) return seasonal_naive(history, horizon, season);
  const std::vector<double> values = without_gaps(history);
  std::vector<double> out(static_cast<size_t>(horizon), values.back());
  if (baseline != Baseline::naive2 || !is_seasonal(values, season)) return out;
  const std::vector<double> indices = seasonal_indices(values, season);
  const auto n = static_cast<int64_t>(values.size());
  const double level = values.back() / indices[static_cast<size_t>((n - 1) % season)];
  if (!std::isfinite(level)) return out;  // this position in the season is zero
  for (int64_t h = 0; h < horizon; ++h)
    out[static_cast<size_t>(h)] = level * indices[static_cast<size_t>((n + h) % season)];
  return out;
}

}  // namespace brim::forecast
