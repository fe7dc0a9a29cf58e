// SPDX-License-Identifier: Apache-2.0
#include "forecast/metrics.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace brim::forecast {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Mean of error(forecast, actual) over the present actual values.
template <class Error>
double mean_over(std::span<const double> forecast, std::span<const float> actual, Error error) {
  BRIM_CHECK(forecast.size() == actual.size(), "{} forecasts, {} actual values", forecast.size(), actual.size());
  double sum = 0;
  int64_t n = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    if (std::isnan(actual[i])) continue;
    const double e = error(forecast[i], static_cast<double>(actual[i]));
    if (e < 0) continue;  // undefined
    sum += e;
    ++n;
  }
  return n == 0 ? kNan : sum / static_cast<double>(n);
}

// The regularised incomplete beta function by its continued fraction (Lentz).
double beta_fraction(double a, double b, double x) {
  constexpr double kTiny = 1e-300;
  constexpr int kMost = 10'000;
  double c = 1, d = 1 - (a + b) * x / (a + 1);
  d = 1 / (std::abs(d) < kTiny ? kTiny : d);
  double h = d;
  for (int m = 1; m <= kMost; ++m) {
    const double step = m;
    const double even = step * (b - step) * x / ((a + 2 * step - 1) * (a + 2 * step));
    const double odd = -(a + step) * (a + b + step) * x / ((a + 2 * step) * (a + 2 * step + 1));
    for (const double term : {even, odd}) {
      d = 1 + term * d;
      c = 1 + term / c;
      d = 1 / (std::abs(d) < kTiny ? kTiny : d);
      if (std::abs(c) < kTiny) c = kTiny;
      h *= d * c;
    }
    if (std::abs(d * c - 1) < 1e-15) break;
  }
  return h;
}

double incomplete_beta(double a, double b, double x) {
  if (x <= 0) return 0;
  if (x >= 1) return 1;
  const double front =
      std::exp(std::lgamma(a + b) - std::lgamma(a) - std::lgamma(b) + a * std::log(x) + b * std::log1p(-x));
  return x < (a + 1) / (a + b + 2) ? front * beta_fraction(a, b, x) / a : 1 - front * beta_fraction(b, a, 1 - x) / b;
}

}  // namespace

double smape(std::span<const double> forecast, std::span<const float> actual) {
  return mean_over(forecast, actual, [](double f, double y) {
    const double size = std::abs(f) + std::abs(y);
    return size == 0 ? 0 : 200 * std::abs(f - y) / size;
  });
}

double mape(std::span<const double> forecast, std::span<const float> actual) {
  return mean_over(forecast, actual,
                   [](double f, double y) { return y == 0 ? -1 : 100 * std::abs(f - y) / std::abs(y); });
}

double mae(std::span<const double> forecast, std::span<const float> actual) {
  return mean_over(forecast, actual, [](double f, double y) { return std::abs(f - y); });
}

double mase(std::span<const double> forecast, std::span<const float> actual, double scale) {
  return scale > 0 ? mae(forecast, actual) / scale : kNan;
}

double pinball(std::span<const double> forecast, std::span<const float> actual, double q) {
  return mean_over(forecast, actual, [q](double f, double y) { return y >= f ? q * (y - f) : (1 - q) * (f - y); });
}

double Crps::value() {
  std::sort(nodes_.begin(), nodes_.end());
  double sum = 0, from = 0;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const double to = i + 1 < nodes_.size() ? (nodes_[i].first + nodes_[i + 1].first) / 2 : 1;
    sum += 2 * (to - from) * nodes_[i].second;
    from = to;
  }
  return sum;
}

double seasonal_scale(std::span<const float> history, int64_t season) {
  double sum = 0;
  int64_t n = 0;
  const auto lag = static_cast<size_t>(season);
  for (size_t t = lag; t < history.size(); ++t) {
    const double step = static_cast<double>(history[t]) - static_cast<double>(history[t - lag]);
    if (std::isnan(step)) continue;
    sum += std::abs(step);
    ++n;
  }
  return n == 0 ? kNan : sum / static_cast<double>(n);
}

void Mean::add(double value) {
  if (!std::isfinite(value)) return;
  sum += value;
  ++count;
}

double Mean::value() const { return count == 0 ? kNan : sum / static_cast<double>(count); }

void Coverage::add(std::span<const double> low, std::span<const double> high, std::span<const float> actual) {
  BRIM_CHECK(low.size() == actual.size() && high.size() == actual.size(), "{} and {} bounds, {} actual values",
             low.size(), high.size(), actual.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    const auto y = static_cast<double>(actual[i]);
    if (std::isnan(y)) continue;
    inside += y >= low[i] && y <= high[i];
    ++all;
  }
}

double Coverage::share() const { return all == 0 ? kNan : static_cast<double>(inside) / static_cast<double>(all); }

double owa(double smape, double mase, double naive2_smape, double naive2_mase) {
  return (smape / naive2_smape + mase / naive2_mase) / 2;
}

double skill(double error, double reference) { return reference > 0 ? 1 - error / reference : kNan; }

double student_two_sided(double t, double degrees) {
  return incomplete_beta(degrees / 2, 0.5, degrees / (degrees + t * t));
}

DieboldMariano diebold_mariano(std::span<const double> differences, int64_t lags) {
  const auto n = static_cast<int64_t>(differences.size());
  if (n < 3) return {0, kNan};
  const auto count = static_cast<double>(n);
  double mean = 0;
  for (const double d : differences) mean += d / count;
  const auto covariance = [&](int64_t lag) {
    double sum = 0;
    for (int64_t t = lag; t < n; ++t)
      sum += (differences[static_cast<size_t>(t)] - mean) * (differences[static_cast<size_t>(t - lag)] - mean);
    return sum / count;
  };
  lags = std::clamp<int64_t>(lags, 0, n - 1);
  double spread = covariance(0), bartlett = spread;
  for (int64_t k = 1; k <= lags; ++k) {
    const double c = covariance(k);
    spread += 2 * c;
    bartlett += 2 * c * (1 - static_cast<double>(k) / static_cast<double>(lags + 1));
  }
  // Plain sums of autocovariances can be negative; with Bartlett weights they cannot.
  if (spread <= 0) spread = bartlett;
  if (spread <= 0) return {0, mean == 0 ? 1 : kNan};
  const auto h = static_cast<double>(lags + 1);
  const double correction = std::max((count + 1 - 2 * h + h * (h - 1) / count) / count, 0.0);
  const double statistic = mean / std::sqrt(spread / count) * std::sqrt(correction);
  return {statistic, student_two_sided(statistic, count - 1)};
}

}  // namespace brim::forecast
