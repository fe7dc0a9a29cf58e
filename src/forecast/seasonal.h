// SPDX-License-Identifier: Apache-2.0
// Classical seasonal decomposition and the seasonality tests of the M4 competition and of Theta. Values have no gaps.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace brim::forecast {

// Significant autocorrelation (90 %) at lag `season`; false for constant series.
bool is_autocorrelated(std::span<const double> values, int64_t season);

// M4's test: at least three seasons and is_autocorrelated(). R's acf stops at lag 10·log10 n by default, so longer
// seasons count as not seasonal.
bool is_seasonal(std::span<const double> values, int64_t season);

enum class SeasonKind : uint8_t { none, additive, multiplicative };

// One index per position in the season, with mean 1 (multiplicative) or 0 (additive): ratios to, or differences from,
// the centred moving average, averaged per position.
std::vector<double> seasonal_indices(std::span<const double> values, int64_t season,
                                     SeasonKind kind = SeasonKind::multiplicative);

// A series split into seasonal indices and the rest. Multiplicative if all values are positive and no index is close to
// zero, else additive.
struct SeasonalAdjustment {
  SeasonKind kind = SeasonKind::none;
  std::vector<double> indices;
  std::vector<double> adjusted;

  // Puts the season back on forecasts of `adjusted`.
  void restore(std::span<double> forecast) const;
};
SeasonalAdjustment adjust_for_season(std::span<const double> values, int64_t season);

}  // namespace brim::forecast
