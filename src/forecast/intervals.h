// SPDX-License-Identifier: Apache-2.0
// Prediction intervals by split conformal prediction: the half-width per step ahead is a quantile of absolute errors at
// that step from earlier folds with outcomes known at the cutoff. Errors are divided by a per-window scale, so that
// series of different magnitude share them.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace brim::forecast {

class ConformalIntervals {
 public:
  explicit ConformalIntervals(int64_t horizon);

  // Adds forecasts made at `cutoff` and the actual values (NaN if missing).
  void add(int64_t cutoff, double scale, std::span<const double> forecast, std::span<const float> actual);

  // Half-widths in units of the scale per step ahead, for a forecast made at `cutoff`: the ⌈(n + 1)·level⌉-th
  // smallest of the n known errors; NaN if n is too small for the level.
  std::vector<double> half_widths(int64_t cutoff, double level_percent) const;
  int64_t errors_known(int64_t cutoff) const;  // minimum over steps ahead

  // For models, which keep the errors of held-out horizons: all errors of a step ahead, ascending; at most `most`, then
  // evenly spaced quantiles of them.
  std::vector<float> sizes(size_t step, size_t most) const;
  static ConformalIntervals of_sizes(const std::vector<std::vector<float>>& sizes);
  int64_t horizon() const { return static_cast<int64_t>(misses_.size()); }

 private:
  struct Miss {
    int64_t seen;  // step at which the outcome became known
    double size;
  };
  std::vector<std::vector<Miss>> misses_;  // by step ahead
};

}  // namespace brim::forecast
