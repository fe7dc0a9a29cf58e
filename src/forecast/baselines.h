// SPDX-License-Identifier: Apache-2.0
// Forecasts that need no training, and that every other forecast must beat to be worth it. Naive2 is the M4
// competition's, with its test for seasonality, since OWA is measured against it.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace brim::forecast {

enum class Baseline : uint8_t {
  naive,   // the last value
  snaive,  // the last season's values
  naive2,  // the last value without its season, times the seasonal indices, where the series is seasonal
};
const char* baseline_name(Baseline baseline);
std::optional<Baseline> baseline_of(std::string_view name);
const char* column_of(Baseline baseline);  // what its column of forecasts is called, as StatsForecast does

// `horizon` values. Absent points (NaN) of the history are passed over: each stands for the value before it, in
// snaive's last season for the one a season before. The history must have a value that is present.
std::vector<double> forecast_baseline(Baseline baseline, std::span<const float> history, int64_t horizon,
                                      int64_t season);

// M4's test: at least three seasons, and the autocorrelation a season back beyond its 90 % limit. Lags past R's default
// for acf (10·log10 n) were never seen by it and count as not seasonal.
bool is_seasonal(std::span<const double> values, int64_t season);

// One index for each place in the season, their mean 1: the series divided by its centred moving average, averaged.
std::vector<double> seasonal_indices(std::span<const double> values, int64_t season);

}  // namespace brim::forecast
