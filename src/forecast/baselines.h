// SPDX-License-Identifier: Apache-2.0
// Baseline forecasts that need no training and that every model should beat. Naive2 follows the M4 competition,
// including its seasonality test, because OWA is defined relative to it. Trained models are elsewhere (nbeats.h).
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
  naive2,  // last deseasonalised value times the seasonal indices; plain naive if not seasonal
};
const char* baseline_name(Baseline baseline);
std::optional<Baseline> baseline_of(std::string_view name);
const char* column_of(Baseline baseline);  // name of the forecast column, as in StatsForecast

// Returns `horizon` values. Missing points (NaN) take the previous value; in the last season of snaive they take the
// value one season earlier. The history must contain at least one present value.
std::vector<double> forecast_baseline(Baseline baseline, std::span<const float> history, int64_t horizon,
                                      int64_t season);

// M4's test: at least three seasons, and an autocorrelation at lag `season` beyond its 90 % limit. R's acf stops at lag
// 10·log10 n by default, so longer seasons count as not seasonal.
bool is_seasonal(std::span<const double> values, int64_t season);

// One index per position in the season, with mean 1: ratios to the centred moving average, averaged per position.
std::vector<double> seasonal_indices(std::span<const double> values, int64_t season);

}  // namespace brim::forecast
