// SPDX-License-Identifier: Apache-2.0
// Summary statistics of repeated measurements.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "rows/metrics.h"

namespace brim::jobs {

struct Spread {
  int64_t count = 0;
  double mean = 0, p50 = 0, p95 = 0, p99 = 0, least = 0, most = 0;
  double low = 0, high = 0;  // 95 % confidence interval of the median; all values if there are too few
  // Whether the median is significantly above or below a value. Always false with fewer than six values.
  bool surely_above(double value) const { return count >= kFewestForVerdict && low > value; }
  bool surely_below(double value) const { return count >= kFewestForVerdict && high < value; }
  static constexpr int64_t kFewestForVerdict = 6;  // chance of all on one side of the median: 2 in 64
};

// Percentiles are interpolated between the nearest ranks. Non-finite values are skipped.
inline Spread spread_of(std::vector<double> values) {
  std::erase_if(values, [](double v) { return !std::isfinite(v); });
  Spread s;
  if (values.empty()) return s;
  std::sort(values.begin(), values.end());
  s.count = static_cast<int64_t>(values.size());
  for (const double v : values) s.mean += v / static_cast<double>(s.count);
  s.p50 = rows::percentile(values, 0.5);
  s.p95 = rows::percentile(values, 0.95);
  s.p99 = rows::percentile(values, 0.99);
  s.least = values.front();
  s.most = values.back();
  // Ranks n/2 ± 0.98·√n, for any distribution.
  const auto n = static_cast<double>(s.count);
  const auto rank = static_cast<size_t>(std::max(1.0, std::floor((n - 1.96 * std::sqrt(n)) / 2)));
  s.low = values[rank - 1];
  s.high = values[values.size() - rank];
  return s;
}

}  // namespace brim::jobs
