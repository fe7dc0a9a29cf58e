// SPDX-License-Identifier: Apache-2.0
#include "forecast/baselines.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

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

}  // namespace

const char* baseline_name(Baseline baseline) {
  switch (baseline) {
    case Baseline::naive:
      return "naive";
    case Baseline::snaive:
      return "snaive";
    case Baseline::naive2:
      return "naive2";
  }
  return "naive";
}

std::optional<Baseline> baseline_of(std::string_view name) {
  for (const Baseline b : {Baseline::naive, Baseline::snaive, Baseline::naive2})
    if (name == baseline_name(b)) return b;
  return std::nullopt;
}

const char* column_of(Baseline baseline) {
  return baseline == Baseline::naive ? "Naive" : baseline == Baseline::snaive ? "SeasonalNaive" : "Naive2";
}

bool is_seasonal(std::span<const double> values, int64_t season) {
  const auto n = static_cast<int64_t>(values.size());
  if (season < 2 || n < 3 * season) return false;
  if (season > static_cast<int64_t>(std::floor(10 * std::log10(static_cast<double>(n))))) return false;
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

std::vector<double> seasonal_indices(std::span<const double> values, int64_t season) {
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
    const double ratio = values[static_cast<size_t>(t)] / trend;
    if (!std::isfinite(ratio)) continue;
    sums[static_cast<size_t>(t % season)] += ratio;
    counts[static_cast<size_t>(t % season)] += 1;
  }
  double mean = 0;
  for (size_t i = 0; i < sums.size(); ++i) {
    sums[i] = counts[i] > 0 ? sums[i] / counts[i] : 1;
    mean += sums[i] / static_cast<double>(season);
  }
  for (double& index : sums) index /= mean;
  return sums;
}

std::vector<double> forecast_baseline(Baseline baseline, std::span<const float> history, int64_t horizon,
                                      int64_t season) {
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
