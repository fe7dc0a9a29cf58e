// SPDX-License-Identifier: Apache-2.0
#include "forecast/seasonal.h"

#include <algorithm>
#include <cmath>

namespace brim::forecast {

bool is_autocorrelated(std::span<const double> values, int64_t season) {
  const auto n = static_cast<int64_t>(values.size());
  if (n <= season) return false;
  if (std::all_of(values.begin(), values.end(), [&](double v) { return v == values[0]; })) return false;
  double mean = 0;
  for (const double v : values) mean += v / static_cast<double>(n);
  const auto covariance = [&](int64_t lag) {
    double sum = 0;
    for (int64_t t = lag; t < n; ++t)
      sum += (values[static_cast<size_t>(t)] - mean) * (values[static_cast<size_t>(t - lag)] - mean);
    return sum;
  };
  const double variance = covariance(0);
  double squares = 0;
  for (int64_t lag = 1; lag < season; ++lag) {
    const double r = covariance(lag) / variance;
    squares += r * r;
  }
  const double limit = 1.645 * std::sqrt((1 + 2 * squares) / static_cast<double>(n));
  return std::abs(covariance(season) / variance) > limit;
}

bool is_seasonal(std::span<const double> values, int64_t season) {
  const auto n = static_cast<int64_t>(values.size());
  if (season < 2 || n < 3 * season) return false;
  if (season > static_cast<int64_t>(std::floor(10 * std::log10(static_cast<double>(n))))) return false;
  return is_autocorrelated(values, season);
}

std::vector<double> seasonal_indices(std::span<const double> values, int64_t season, SeasonKind kind) {
  const bool ratios = kind == SeasonKind::multiplicative;
  const auto n = static_cast<int64_t>(values.size());
  const int64_t half = season / 2;
  const bool even = season % 2 == 0;
  std::vector<double> sums(static_cast<size_t>(season), 0), counts(static_cast<size_t>(season), 0);
  for (int64_t t = half; t + half < n; ++t) {
    double trend = 0;
    for (int64_t k = -half; k <= half; ++k) {
      const double weight = even && (k == -half || k == half) ? 0.5 : 1;
      trend += weight * values[static_cast<size_t>(t + k)];
    }
    trend /= static_cast<double>(season);
    const double value = values[static_cast<size_t>(t)], share = ratios ? value / trend : value - trend;
    if (!std::isfinite(share)) continue;
    sums[static_cast<size_t>(t % season)] += share;
    counts[static_cast<size_t>(t % season)] += 1;
  }
  double mean = 0;
  for (size_t i = 0; i < sums.size(); ++i) {
    sums[i] = counts[i] > 0 ? sums[i] / counts[i] : ratios ? 1 : 0;
    mean += sums[i] / static_cast<double>(season);
  }
  for (double& index : sums) index = ratios ? index / mean : index - mean;
  return sums;
}

SeasonalAdjustment adjust_for_season(std::span<const double> values, int64_t season) {
  constexpr double kSmallestIndex = 0.01;
  SeasonalAdjustment out;
  out.kind = SeasonKind::additive;
  if (std::all_of(values.begin(), values.end(), [](double v) { return v > 0; })) {
    out.indices = seasonal_indices(values, season, SeasonKind::multiplicative);
    if (*std::min_element(out.indices.begin(), out.indices.end()) >= kSmallestIndex)
      out.kind = SeasonKind::multiplicative;
  }
  if (out.kind == SeasonKind::additive) out.indices = seasonal_indices(values, season, SeasonKind::additive);
  out.adjusted.assign(values.begin(), values.end());
  for (size_t t = 0; t < values.size(); ++t) {
    const double index = out.indices[t % static_cast<size_t>(season)];
    out.adjusted[t] = out.kind == SeasonKind::multiplicative ? values[t] / index : values[t] - index;
  }
  return out;
}

void SeasonalAdjustment::restore(std::span<double> forecast) const {
  for (size_t h = 0; h < forecast.size() && kind != SeasonKind::none; ++h) {
    const double index = indices[(adjusted.size() + h) % indices.size()];
    forecast[h] = kind == SeasonKind::multiplicative ? forecast[h] * index : forecast[h] + index;
  }
}

}  // namespace brim::forecast
