// SPDX-License-Identifier: Apache-2.0
// Intervals from errors already made (split conformal prediction): the half-width of a step ahead is a quantile of the
// absolute errors at that step, of earlier folds whose outcome was known at the cutoff. Errors are in units of a scale
// that belongs to each window, so that series of different sizes share them.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace brim::forecast {

class ConformalIntervals {
 public:
  explicit ConformalIntervals(int64_t horizon);

  // Forecasts made at `cutoff` and what came (NaN where absent).
  void add(int64_t cutoff, double scale, std::span<const double> forecast, std::span<const float> actual);

  // In scales, for each step ahead of a forecast made at `cutoff`. Among n errors known by then the ⌈(n + 1)·level⌉-th
  // smallest; NaN where n is too small for the level.
  std::vector<double> half_widths(int64_t cutoff, double level_percent) const;
  int64_t errors_known(int64_t cutoff) const;  // of the step that has fewest

 private:
  struct Miss {
    int64_t seen;  // the step at which it was known
    double size;
  };
  std::vector<std::vector<Miss>> misses_;  // by step ahead
};

}  // namespace brim::forecast
