// SPDX-License-Identifier: Apache-2.0
// The Theta method in state-space form (Fiorucci et al., 2016): standard and optimised theta, each static and dynamic,
// chosen by the error of one-step forecasts. Series with a significant seasonal pattern are seasonally adjusted first.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace brim::forecast {

// Fewest points for a fit; shorter series have no forecast.
constexpr int64_t kThetaPoints = 4;

// Returns `horizon` values after the last of `values`, which must be finite.
std::vector<double> forecast_theta(std::span<const double> values, int64_t horizon, int64_t season);

}  // namespace brim::forecast
