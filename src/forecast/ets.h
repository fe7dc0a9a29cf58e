// SPDX-License-Identifier: Apache-2.0
// Exponential smoothing in state-space form with an automatic choice of the model by AICc (Hyndman et al., 2002):
// additive or multiplicative errors, no, additive or damped trend, and no, additive or multiplicative season. There is
// no multiplicative trend, because its forecasts explode.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace brim::forecast {

// Fewest points for a fit; shorter series have no forecast.
constexpr int64_t kEtsPoints = 7;

struct EtsForecast {
  std::vector<double> values;
  std::string model;  // "ETS(M,Ad,A)"
  double aicc = 0;
};

// Forecasts `horizon` values after the last of `values`, which must be finite. A season of more than 24 points would
// have too many parameters, so it is removed before the fit and added again.
EtsForecast forecast_ets(std::span<const double> values, int64_t horizon, int64_t season);

}  // namespace brim::forecast
