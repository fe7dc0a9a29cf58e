// SPDX-License-Identifier: Apache-2.0
// Held-out horizons at several origins: the series up to each origin and the values that follow. The widths of
// prediction intervals and the weights of combined models are fitted on them.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "forecast/baseline_choice.h"
#include "forecast/intervals.h"
#include "forecast/series_store.h"

namespace brim::forecast {

// One origin. A series takes part if enough points are left before it.
struct HeldOut {
  SeriesStore known;
  std::vector<int64_t> of;                 // index of each known series in all series
  std::vector<std::vector<float>> actual;  // the horizon after the known points, by known series
};

// Fewest points before an origin: one seasonal difference and one more point.
constexpr int64_t fewest_points(int64_t season) { return season + 2; }

// Points of a series before an origin. If the last of them are missing, the series ends at its last present point. 0 if
// fewer than `fewest` are left or a whole horizon is missing, for which the origin before is the same.
int64_t points_before(std::span<const float> values, int64_t horizon, int64_t origin, int64_t fewest);

// The series without their last `origin` horizons. Leaves out series without points_before() the origin.
HeldOut hold_out(const SeriesStore& series, int64_t horizon, int64_t origin, int64_t fewest);

// Forecasts of the known series of an origin.
using OriginForecasts = std::function<std::vector<std::vector<double>>(const HeldOut& origin)>;

// Enough errors per step ahead for the widths of intervals. Models know fewer points at earlier origins and err more,
// so those are used only while fewer errors are known.
constexpr int64_t kEnoughErrors = 200;
bool enough_errors(const ConformalIntervals& errors);

// Errors at the latest of `origins` origins, in units of interval_scale().
ConformalIntervals held_out_errors(const SeriesStore& series, int64_t horizon, int64_t season, int64_t origins,
                                   const OriginForecasts& forecasts);

// Unit of the errors: seasonal_scale(), for series shorter than a season that of a season of 1, for constant series 0.
double interval_scale(std::span<const float> history, int64_t season);

// The bounds of an interval around a forecast.
struct IntervalBounds {
  std::vector<double> low, high;
};
IntervalBounds bounds_around(std::span<const double> forecast, std::span<const double> half_widths, double scale);

// Half-widths for `level` percent; throws bad_data if too few errors are known for it.
std::vector<double> half_widths_for(const ConformalIntervals& errors, double level);

}  // namespace brim::forecast
