// SPDX-License-Identifier: Apache-2.0
#include "forecast/held_out.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "forecast/metrics.h"

namespace brim::forecast {

int64_t points_before(std::span<const float> values, int64_t horizon, int64_t origin, int64_t fewest) {
  const int64_t end = static_cast<int64_t>(values.size()) - origin * horizon;
  for (int64_t known = end; known >= std::max<int64_t>(fewest, 1) && known > end - horizon; --known)
    if (!std::isnan(values[static_cast<size_t>(known) - 1])) return known;
  return 0;
}

HeldOut hold_out(const SeriesStore& series, int64_t horizon, int64_t origin, int64_t fewest) {
  std::vector<SeriesStore::Head> heads;
  std::vector<int64_t> of;
  std::vector<std::vector<float>> actual;
  for (int64_t i = 0; i < series.size(); ++i) {
    const auto values = series.series(i);
    const int64_t known = points_before(values, horizon, origin, fewest);
    if (known == 0) continue;
    heads.push_back({i, known});
    of.push_back(i);
    const auto next = values.subspan(static_cast<size_t>(known), static_cast<size_t>(horizon));
    actual.emplace_back(next.begin(), next.end());
  }
  return {series.heads(heads), std::move(of), std::move(actual)};
}

bool enough_errors(const ConformalIntervals& errors) {
  return errors.errors_known(std::numeric_limits<int64_t>::max()) >= kEnoughErrors;
}

ConformalIntervals held_out_errors(const SeriesStore& series, int64_t horizon, int64_t season, int64_t origins,
                                   const OriginForecasts& forecasts) {
  ConformalIntervals errors(horizon);
  for (int64_t k = 1; k <= origins && !enough_errors(errors); ++k) {
    const HeldOut origin = hold_out(series, horizon, k, fewest_points(season));
    if (origin.known.size() == 0) continue;
    const auto all = forecasts(origin);
    for (size_t i = 0; i < all.size(); ++i) {
      const double scale = interval_scale(origin.known.series(static_cast<int64_t>(i)), season);
      errors.add(0, scale, all[i], origin.actual[i]);
    }
  }
  return errors;
}

double interval_scale(std::span<const float> history, int64_t season) {
  double scale = seasonal_scale(history, season);
  if (!std::isfinite(scale)) scale = seasonal_scale(history, 1);
  return std::isfinite(scale) ? scale : 0;
}

IntervalBounds bounds_around(std::span<const double> forecast, std::span<const double> half_widths, double scale) {
  IntervalBounds bounds;
  for (size_t h = 0; h < forecast.size(); ++h) {
    bounds.low.push_back(forecast[h] - half_widths[h] * scale);
    bounds.high.push_back(forecast[h] + half_widths[h] * scale);
  }
  return bounds;
}

std::vector<double> half_widths_for(const ConformalIntervals& errors, double level) {
  constexpr int64_t kAll = std::numeric_limits<int64_t>::max();
  std::vector<double> widths = errors.half_widths(kAll, level);
  for (const double width : widths)
    if (std::isnan(width))
      fail(ErrorCode::bad_data, Remedy{"set a lower `level`, or provide more or longer series"},
           "`level={:g}` requires {} held-out errors per step ahead, but only {} are known", level,
           static_cast<int64_t>(std::ceil(level / (100 - level) - 1e-9)), errors.errors_known(kAll));
  return widths;
}

}  // namespace brim::forecast
