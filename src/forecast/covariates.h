// SPDX-License-Identifier: Apache-2.0
// Covariates as inputs of N-BEATS: columns of the data and calendar features, scaled, in rows by point from which the
// inputs of a window are one contiguous stretch. Past columns are read before the cut only.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "forecast/series_store.h"

namespace brim::forecast {

enum class CalendarFeature : uint8_t { hour, weekday, monthday, yearday };
const char* calendar_name(CalendarFeature feature);

// Inputs by kind, per point and padded to multiples of 4; zero without covariates.
struct CovariateShape {
  int64_t future = 0, past = 0;
  int64_t fixed = 0;    // per window; pads inputs() to a multiple of 8
  int64_t history = 0;  // points before the cut, the same for all lanes
  bool any() const { return future + past + fixed > 0; }
  int64_t inputs(int64_t horizon) const { return (history + horizon) * future + history * past + fixed; }
  bool operator==(const CovariateShape&) const = default;
};

struct CovariateInput {
  rows::CovariateColumn column;
  std::vector<std::string> categories;  // one input each; empty: a number
  bool by_series = false;               // scaled by the mean and deviation of each series, otherwise by those of all
  double mean = 0, deviation = 1;
};

struct CovariateSpec {
  std::vector<CovariateInput> columns;
  std::vector<CalendarFeature> calendar;
  int64_t history = 0;

  bool empty() const { return columns.empty() && calendar.empty(); }
  CovariateShape shape(int64_t horizon) const;
  std::vector<rows::CovariateColumn> wanted() const;  // columns to read
};

// Calendar features that a frequency can use: parts of a day, week or month if its steps are shorter.
std::vector<CalendarFeature> calendar_features(const rows::Frequency& frequency);

// False for numbered points, which have no calendar features.
bool has_dates(const SeriesStore& series);

// Scaling and categories of the columns of `series`, from the first `known` points of each series; empty: from all.
// Neither uses values after these points, or static values of series without any. Throws bad_data for columns with too
// many categories.
CovariateSpec fit_covariates(const SeriesStore& series, std::vector<CalendarFeature> calendar, int64_t history,
                             std::span<const int64_t> known = {});

// Inputs of all windows of a store. The row of a window begins `history` points before its cut.
struct CovariateTable {
  CovariateShape shape;
  int64_t horizon = 0, rows = 0;
  std::vector<float> future, past, fixed;  // [rows][inputs per point]
  std::vector<int64_t> first_row;          // by series: the row of cut 0
  int32_t row(int64_t series, int64_t cut) const {
    return static_cast<int32_t>(first_row[static_cast<size_t>(series)] + cut);
  }
};
// Rows of a table for this many series and points.
int64_t covariate_rows(const CovariateShape& shape, int64_t horizon, int64_t series, int64_t points);
// Series are scaled by their first `known` points; empty: by all. Missing values are means. Throws bad_data for
// calendar features of numbered points.
CovariateTable encode_covariates(const CovariateSpec& spec, const SeriesStore& series, int64_t horizon,
                                 std::span<const int64_t> known = {});

// Logs the categories of `series` that the model does not know.
void log_unknown_categories(const CovariateSpec& spec, const SeriesStore& series);

// Throws bad_data, with the last row of the series, unless every future column has values for the `horizon` points
// after each series.
void require_future(const CovariateSpec& spec, const SeriesStore& series, int64_t horizon);

}  // namespace brim::forecast
