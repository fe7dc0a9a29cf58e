// SPDX-License-Identifier: Apache-2.0
// Baseline forecasts, which need no training beforehand and which every model should beat. Naive2 follows the M4
// competition, including its seasonality test, because OWA is defined relative to it. Theta and ETS are fitted to each
// series (theta.h, ets.h). Trained models are elsewhere (nbeats.h).
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
  theta,
  ets,
  automatic,  // the best of the others on the last horizons of each series (baseline_choice.h)
};
const char* baseline_name(Baseline baseline);
std::optional<Baseline> baseline_of(std::string_view name);
const char* column_of(Baseline baseline);       // name of the forecast column, as in StatsForecast
const char* baseline_title(Baseline baseline);  // "seasonal naive", for texts

// Returns `horizon` values; not for `automatic`. Missing points (NaN) take the previous value; in the last season of
// snaive they take the value one season earlier. The history must contain at least one present value. Series too short
// for a fit use snaive, and fits use at most the last kFittedPoints.
std::vector<double> forecast_baseline(Baseline baseline, std::span<const float> history, int64_t horizon,
                                      int64_t season);

constexpr int64_t kFittedPoints = 4000;

}  // namespace brim::forecast
