// SPDX-License-Identifier: Apache-2.0
#include "forecast/shrinkage.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace brim::forecast {

Shrinkage::Shrinkage(int64_t horizon) : moves_(static_cast<size_t>(horizon)) {}

void Shrinkage::add(int64_t cutoff, double last_value, double scale, std::span<const double> forecast,
                    std::span<const float> actual) {
  BRIM_CHECK(forecast.size() == actual.size() && forecast.size() <= moves_.size(), "{} forecasts, {} actual, {} steps",
             forecast.size(), actual.size(), moves_.size());
  if (!(scale > 0)) return;
  for (size_t h = 0; h < forecast.size(); ++h) {
    const double move = (forecast[h] - last_value) / scale,
                 came = (static_cast<double>(actual[h]) - last_value) / scale;
    if (std::isfinite(move) && std::isfinite(came))
      moves_[h].push_back({cutoff + static_cast<int64_t>(h) + 1, move, came});
  }
}

// Σ|λ·m − c| is minimal at the median of c ÷ m weighted by |m|. The sum is convex in λ, so clamping to [0, 1] gives the
// minimum on that interval.
std::vector<double> Shrinkage::factors(int64_t cutoff) const {
  std::vector<double> all;
  std::vector<std::pair<double, double>> ratios;  // (ratio, weight)
  for (const auto& moves : moves_) {
    ratios.clear();
    double total = 0;
    for (const Move& move : moves) {
      const double weight = std::abs(move.forecast);
      if (move.seen > cutoff || weight == 0) continue;
      ratios.emplace_back(move.actual / move.forecast, weight);
      total += weight;
    }
    std::sort(ratios.begin(), ratios.end());
    double factor = 1, below = 0;
    for (const auto& [ratio, weight] : ratios) {
      below += weight;
      factor = ratio;
      if (2 * below >= total) break;
    }
    all.push_back(std::clamp(factor, 0.0, 1.0) + 0.0);  // avoid -0 in output
  }
  return all;
}

void shrink(std::span<double> forecast, double last_value, std::span<const double> factors) {
  BRIM_CHECK(factors.size() >= forecast.size(), "{} factors, {} steps", factors.size(), forecast.size());
  for (size_t h = 0; h < forecast.size(); ++h) forecast[h] = last_value + factors[h] * (forecast[h] - last_value);
}

}  // namespace brim::forecast
