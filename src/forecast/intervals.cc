// SPDX-License-Identifier: Apache-2.0
#include "forecast/intervals.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace brim::forecast {

ConformalIntervals::ConformalIntervals(int64_t horizon) : misses_(static_cast<size_t>(horizon)) {}

void ConformalIntervals::add(int64_t cutoff, double scale, std::span<const double> forecast,
                             std::span<const float> actual) {
  BRIM_CHECK(forecast.size() == actual.size() && forecast.size() <= misses_.size(), "{} forecasts, {} actual, {} steps",
             forecast.size(), actual.size(), misses_.size());
  if (!(scale > 0)) return;
  for (size_t h = 0; h < forecast.size(); ++h) {
    const double size = std::abs(forecast[h] - static_cast<double>(actual[h])) / scale;
    if (std::isfinite(size)) misses_[h].push_back({cutoff + static_cast<int64_t>(h) + 1, size});
  }
}

std::vector<double> ConformalIntervals::half_widths(int64_t cutoff, double level_percent) const {
  std::vector<double> widths, known;
  for (const auto& misses : misses_) {
    known.clear();
    for (const Miss& miss : misses)
      if (miss.seen <= cutoff) known.push_back(miss.size);
    const auto n = static_cast<double>(known.size());
    // Rounding must not turn 0.8·10 into 9.
    const auto rank = static_cast<size_t>(std::ceil((n + 1) * level_percent / 100 - 1e-9));
    if (rank == 0 || rank > known.size()) {
      widths.push_back(std::numeric_limits<double>::quiet_NaN());
      continue;
    }
    const auto at = known.begin() + static_cast<std::ptrdiff_t>(rank - 1);
    std::nth_element(known.begin(), at, known.end());
    widths.push_back(*at);
  }
  return widths;
}

std::vector<float> ConformalIntervals::sizes(size_t step, size_t most) const {
  std::vector<float> all, some;
  for (const Miss& miss : misses_[step]) all.push_back(static_cast<float>(miss.size));
  std::sort(all.begin(), all.end());
  if (all.size() <= most) return all;
  for (size_t i = 0; i < most; ++i) {
    // The same share of the errors is at most this one as in the whole list.
    const double rank =
        static_cast<double>(i + 1) / static_cast<double>(most + 1) * static_cast<double>(all.size() + 1);
    some.push_back(all[std::min(all.size(), static_cast<size_t>(std::ceil(rank))) - 1]);
  }
  return some;
}

ConformalIntervals ConformalIntervals::of_sizes(const std::vector<std::vector<float>>& sizes) {
  ConformalIntervals out(static_cast<int64_t>(sizes.size()));
  for (size_t h = 0; h < sizes.size(); ++h)
    for (const float size : sizes[h]) out.misses_[h].push_back({0, static_cast<double>(size)});
  return out;
}

int64_t ConformalIntervals::errors_known(int64_t cutoff) const {
  int64_t fewest = std::numeric_limits<int64_t>::max();
  for (const auto& misses : misses_)
    fewest = std::min<int64_t>(
        fewest, std::count_if(misses.begin(), misses.end(), [&](const Miss& miss) { return miss.seen <= cutoff; }));
  return misses_.empty() ? 0 : fewest;
}

}  // namespace brim::forecast
