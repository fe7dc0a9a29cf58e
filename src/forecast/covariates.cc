// SPDX-License-Identifier: Apache-2.0
#include "forecast/covariates.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <numbers>

#include "base/error.h"
#include "base/log.h"
#include "base/units.h"
#include "io/quote_text.h"

namespace brim::forecast {

using rows::CovariateKind;
using rows::CovariateValues;

namespace {

constexpr size_t kMostCategories = 32;
constexpr int64_t kHourUs = 3'600'000'000, kDayUs = 24 * kHourUs;

int64_t rounded_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

int64_t inputs_of(CalendarFeature feature) {
  constexpr int64_t counts[] = {4, 3, 2, 2};
  return counts[static_cast<size_t>(feature)];
}

int64_t inputs_of(const CovariateInput& input) {
  return input.categories.empty() ? 1 : static_cast<int64_t>(input.categories.size());
}

// Sine and cosine of a share of a cycle, and of its double.
void put_wave(double share, int harmonics, float*& to) {
  for (int k = 1; k <= harmonics; ++k) {
    const double angle = 2 * std::numbers::pi * k * share;
    *to++ = static_cast<float>(std::sin(angle));
    *to++ = static_cast<float>(std::cos(angle));
  }
}

void put_calendar(CalendarFeature feature, int64_t time, float*& to) {
  const int64_t day = time / kDayUs - (time % kDayUs < 0 ? 1 : 0);
  const std::chrono::sys_days days{std::chrono::days{day}};
  const std::chrono::year_month_day date{days};
  switch (feature) {
    case CalendarFeature::hour:
      return put_wave(static_cast<double>(time - day * kDayUs) / static_cast<double>(kDayUs), 2, to);
    case CalendarFeature::weekday: {
      const int64_t weekday = ((day + 3) % 7 + 7) % 7;  // Monday is 0
      put_wave(static_cast<double>(weekday) / 7, 1, to);
      *to++ = weekday >= 5 ? 1.0f : 0.0f;
      return;
    }
    case CalendarFeature::monthday:
      return put_wave((static_cast<double>(static_cast<unsigned>(date.day())) - 1) / 31, 1, to);
    case CalendarFeature::yearday: {
      const std::chrono::sys_days first{date.year() / 1 / 1};
      return put_wave(static_cast<double>((days - first).count()) / 365.25, 1, to);
    }
  }
}

struct Spread {
  double mean = 0, deviation = 0;
  int64_t count = 0;
};

Spread spread_of(std::span<const float> values) {
  Spread s;
  double sum = 0, squares = 0;
  for (const float v : values) {
    if (std::isnan(v)) continue;
    ++s.count;
    sum += static_cast<double>(v);
  }
  if (s.count == 0) return s;
  s.mean = sum / static_cast<double>(s.count);
  for (const float v : values)
    if (!std::isnan(v)) squares += (static_cast<double>(v) - s.mean) * (static_cast<double>(v) - s.mean);
  s.deviation = std::sqrt(squares / static_cast<double>(s.count));
  return s;
}

// Values of a series that scaling and categories may use.
std::span<const float> known_values(const CovariateValues& values, int64_t i, int64_t known) {
  const auto from = static_cast<size_t>(values.begin[static_cast<size_t>(i)]),
             to = static_cast<size_t>(values.begin[static_cast<size_t>(i) + 1]);
  const auto all = std::span(values.values).subspan(from, to - from);
  if (values.column.kind == CovariateKind::fixed) return known > 0 ? all : all.first(0);
  return all.first(std::min(all.size(), static_cast<size_t>(known)));
}

int64_t known_points(const SeriesStore& series, std::span<const int64_t> known, int64_t i) {
  return known.empty() ? static_cast<int64_t>(series.series(i).size())
                       : std::max<int64_t>(0, known[static_cast<size_t>(i)]);
}

// Scales by series if series differ more from each other than within themselves.
void fit_scale(const SeriesStore& series, std::span<const int64_t> known, const CovariateValues& values,
               CovariateInput& input) {
  std::vector<float> means;
  double sum = 0, squares = 0, within = 0;
  int64_t count = 0;
  for (int64_t i = 0; i < series.size(); ++i) {
    const auto here = known_values(values, i, known_points(series, known, i));
    const Spread s = spread_of(here);
    if (s.count == 0) continue;
    means.push_back(static_cast<float>(s.mean));
    within += s.deviation * s.deviation;
    count += s.count;
    for (const float v : here)
      if (!std::isnan(v)) sum += static_cast<double>(v);
  }
  if (count == 0) return;
  input.mean = sum / static_cast<double>(count);
  for (int64_t i = 0; i < series.size(); ++i)
    for (const float v : known_values(values, i, known_points(series, known, i)))
      if (!std::isnan(v)) squares += (static_cast<double>(v) - input.mean) * (static_cast<double>(v) - input.mean);
  const double deviation = std::sqrt(squares / static_cast<double>(count)), between = spread_of(means).deviation;
  input.deviation = deviation > 0 ? deviation : 1;
  input.by_series = input.column.kind != CovariateKind::fixed &&
                    between * between > within / static_cast<double>(means.size()) && within > 0;
}

// The categories of known values.
void fit_categories(const SeriesStore& series, std::span<const int64_t> known, const CovariateValues& values,
                    CovariateInput& input) {
  std::vector<bool> used(values.categories.size());
  for (int64_t i = 0; i < series.size(); ++i)
    for (const float v : known_values(values, i, known_points(series, known, i)))
      if (!std::isnan(v)) used[static_cast<size_t>(v)] = true;
  for (size_t c = 0; c < used.size(); ++c)
    if (used[c]) input.categories.push_back(values.categories[c]);
  std::sort(input.categories.begin(), input.categories.end());
  if (input.categories.size() > kMostCategories)
    fail(ErrorCode::bad_data, Remedy{"give a column of numbers, or merge rare categories"},
         "column {} has {} categories, more than {}: {}, …", values.column.name, input.categories.size(),
         kMostCategories, fmt::join(std::span(input.categories).first(3), ", "));
  if (input.categories.empty()) input.categories.emplace_back();
}

// Values of `to` for one point, from a value of the column.
void put_value(const CovariateInput& input, double value, double mean, double deviation, float*& to) {
  if (input.categories.empty()) {
    *to++ = std::isnan(value) ? 0.0f : static_cast<float>((value - mean) / deviation);
    return;
  }
  for (size_t c = 0; c < input.categories.size(); ++c) *to++ = value == static_cast<double>(c) ? 1.0f : 0.0f;
}

// Category indices of the data as indices of the model; unknown ones are NaN.
std::vector<double> category_map(const CovariateInput& input, const CovariateValues& values) {
  std::vector<double> map;
  for (const std::string& name : values.categories) {
    const auto found = std::find(input.categories.begin(), input.categories.end(), name);
    map.push_back(found == input.categories.end() ? std::numeric_limits<double>::quiet_NaN()
                                                  : static_cast<double>(found - input.categories.begin()));
  }
  return map;
}

// Values of the column that `input` reads.
const CovariateValues& values_of(const CovariateInput& input, const SeriesStore& series) {
  const auto& all = series.covariates();
  const auto found = std::find_if(all.begin(), all.end(), [&](const CovariateValues& v) {
    return v.column.name == input.column.name && v.column.kind == input.column.kind;
  });
  BRIM_CHECK(found != all.end(), "no values of column {}", input.column.name);
  return *found;
}

}  // namespace

const char* calendar_name(CalendarFeature feature) {
  constexpr const char* names[] = {"hour", "weekday", "monthday", "yearday"};
  return names[static_cast<size_t>(feature)];
}

CovariateShape CovariateSpec::shape(int64_t horizon) const {
  CovariateShape s;
  if (empty()) return s;
  s.history = history;
  for (const CalendarFeature feature : calendar) s.future += inputs_of(feature);
  for (const CovariateInput& input : columns) {
    int64_t& count = input.column.kind == CovariateKind::future ? s.future
                     : input.column.kind == CovariateKind::past ? s.past
                                                                : s.fixed;
    count += inputs_of(input);
  }
  if (s.future > 0) ++s.future;  // a constant
  for (int64_t* count : {&s.future, &s.past, &s.fixed}) *count = rounded_up(*count, 4);
  if (s.inputs(horizon) % 8 != 0) s.fixed += 4;
  return s;
}

std::vector<rows::CovariateColumn> CovariateSpec::wanted() const {
  std::vector<rows::CovariateColumn> all;
  for (const CovariateInput& input : columns) all.push_back(input.column);
  return all;
}

std::vector<CalendarFeature> calendar_features(const rows::Frequency& f) {
  using Unit = rows::Frequency::Unit;
  std::vector<CalendarFeature> all;
  if (f.unit == Unit::index) return all;
  const bool days = f.unit == Unit::business_day || (f.unit == Unit::fixed && f.count <= kDayUs);
  if (f.unit == Unit::fixed && f.count < kDayUs) all.push_back(CalendarFeature::hour);
  if (days) all.push_back(CalendarFeature::weekday);
  if (days && (f.unit == Unit::business_day || f.count == kDayUs)) all.push_back(CalendarFeature::monthday);
  if (f.unit != Unit::month || f.count % 12 != 0) all.push_back(CalendarFeature::yearday);
  return all;
}

bool has_dates(const SeriesStore& series) {
  return !series.numbered() && series.frequency().unit != rows::Frequency::Unit::index;
}

CovariateSpec fit_covariates(const SeriesStore& series, std::vector<CalendarFeature> calendar, int64_t history,
                             std::span<const int64_t> known) {
  CovariateSpec spec;
  spec.history = history;
  spec.calendar = std::move(calendar);
  for (const CovariateValues& values : series.covariates()) {
    CovariateInput input;
    input.column = values.column;
    if (values.column.categorical) {
      fit_categories(series, known, values, input);
    } else {
      fit_scale(series, known, values, input);
    }
    spec.columns.push_back(std::move(input));
  }
  return spec;
}

int64_t covariate_rows(const CovariateShape& shape, int64_t horizon, int64_t series, int64_t points) {
  return points + series * (shape.history + horizon);
}

namespace {

class Encoder {
 public:
  Encoder(const CovariateSpec& spec, const SeriesStore& series, int64_t horizon, std::span<const int64_t> known)
      : spec_(spec), series_(series), known_(known) {
    if (!spec.calendar.empty() && !has_dates(series))
      fail(ErrorCode::bad_data, Remedy{"give dates in the time column"},
           "calendar features require dates, but the points are numbered");
    table_.shape = spec.shape(horizon);
    table_.horizon = horizon;
    const CovariateShape& shape = table_.shape;
    table_.rows = covariate_rows(shape, horizon, series.size(), static_cast<int64_t>(series.values().size()));
    if (table_.rows >= int64_t{1} << 30)
      fail(ErrorCode::bad_data, Remedy{"give fewer series, or remove the covariates"},
           "covariates of {} points are not supported, at most 2^30", format_count(table_.rows));
    table_.future.resize(static_cast<size_t>(table_.rows * shape.future));
    table_.past.resize(static_cast<size_t>(table_.rows * shape.past));
    table_.fixed.resize(static_cast<size_t>(table_.rows * shape.fixed));
    for (const CovariateInput& input : spec.columns) {
      values_.push_back(&values_of(input, series));
      maps_.push_back(input.categories.empty() ? std::vector<double>() : category_map(input, *values_.back()));
    }
  }

  CovariateTable encode() {
    int64_t row = 0;
    for (int64_t i = 0; i < series_.size(); ++i) {
      table_.first_row.push_back(row);
      put_series(i, row);
      row += table_.shape.history + static_cast<int64_t>(series_.series(i).size()) + table_.horizon;
    }
    return std::move(table_);
  }

 private:
  struct Scale {
    double mean, deviation;
  };

  Scale scale_of(size_t c, int64_t i) const {
    const CovariateInput& input = spec_.columns[c];
    if (input.by_series)
      if (const Spread s = spread_of(known_values(*values_[c], i, known_points(series_, known_, i))); s.deviation > 0)
        return {s.mean, s.deviation};
    return {input.mean, input.deviation};
  }

  double value_at(size_t c, int64_t i, int64_t t) const {
    const CovariateValues& v = *values_[c];
    const int64_t from = v.begin[static_cast<size_t>(i)], count = v.begin[static_cast<size_t>(i) + 1] - from;
    if (v.column.kind == CovariateKind::fixed) t = 0;
    if (t < 0 || t >= count) return std::numeric_limits<double>::quiet_NaN();
    const auto value = static_cast<double>(v.values[static_cast<size_t>(from + t)]);
    return maps_[c].empty() || std::isnan(value) ? value : maps_[c][static_cast<size_t>(value)];
  }

  // Row `history + t` after `row` is that of point t; fixed values are in the rows of cuts.
  void put_series(int64_t i, int64_t row) {
    const CovariateShape& shape = table_.shape;
    const auto points = static_cast<int64_t>(series_.series(i).size());
    std::vector<Scale> scales;
    for (size_t c = 0; c < values_.size(); ++c) scales.push_back(scale_of(c, i));
    for (int64_t t = 0; t < points + table_.horizon; ++t) {
      float *future = table_.future.data() + (row + shape.history + t) * shape.future,
            *past = table_.past.data() + (row + shape.history + t) * shape.past;
      if (shape.future > 0) {
        *future++ = 1;
        const int64_t time = spec_.calendar.empty() ? 0 : series_.time(i, t);
        for (const CalendarFeature feature : spec_.calendar) put_calendar(feature, time, future);
      }
      for (size_t c = 0; c < values_.size(); ++c) {
        const CovariateKind kind = values_[c]->column.kind;
        if (kind == CovariateKind::fixed) continue;
        put_value(spec_.columns[c], value_at(c, i, t), scales[c].mean, scales[c].deviation,
                  kind == CovariateKind::future ? future : past);
      }
    }
    for (int64_t cut = 0; cut <= points && shape.fixed > 0; ++cut) {
      float* fixed = table_.fixed.data() + (row + cut) * shape.fixed;
      for (size_t c = 0; c < values_.size(); ++c)
        if (values_[c]->column.kind == CovariateKind::fixed)
          put_value(spec_.columns[c], value_at(c, i, 0), scales[c].mean, scales[c].deviation, fixed);
    }
  }

  const CovariateSpec& spec_;
  const SeriesStore& series_;
  const std::span<const int64_t> known_;
  std::vector<const CovariateValues*> values_;
  std::vector<std::vector<double>> maps_;
  CovariateTable table_;
};

}  // namespace

CovariateTable encode_covariates(const CovariateSpec& spec, const SeriesStore& series, int64_t horizon,
                                 std::span<const int64_t> known) {
  return Encoder(spec, series, horizon, known).encode();
}

void log_unknown_categories(const CovariateSpec& spec, const SeriesStore& series) {
  for (const CovariateInput& input : spec.columns) {
    if (input.categories.empty()) continue;
    std::vector<std::string> unknown;
    for (const std::string& name : values_of(input, series).categories)
      if (std::find(input.categories.begin(), input.categories.end(), name) == input.categories.end())
        unknown.push_back(name);
    if (!unknown.empty())
      log_info("column {}: the model does not know {} {}; they have no effect", input.column.name,
               format_count(static_cast<int64_t>(unknown.size()), unknown.size() == 1 ? "category" : "categories"),
               io::quote_text(unknown[0]));
  }
}

void require_future(const CovariateSpec& spec, const SeriesStore& series, int64_t horizon) {
  for (const CovariateInput& input : spec.columns) {
    if (input.column.kind != CovariateKind::future) continue;
    for (const CovariateValues& values : series.covariates()) {
      if (values.column.name != input.column.name || values.column.kind != CovariateKind::future) continue;
      for (int64_t i = 0; i < series.size(); ++i) {
        const auto points = static_cast<int64_t>(series.series(i).size());
        const int64_t from = values.begin[static_cast<size_t>(i)], to = values.begin[static_cast<size_t>(i) + 1];
        for (int64_t h = 0; h < horizon; ++h) {
          const int64_t at = from + points + h;
          if (at < to && !std::isnan(values.values[static_cast<size_t>(at)])) continue;
          fail(ErrorCode::bad_data,
               Remedy{fmt::format("add rows with the values of the next {} and a blank target, in this file or in a "
                                  "further file of `data`",
                                  format_count(horizon, "point"))},
               "{}: series {}: column {} has no value at {}, which the forecast requires", series.last_row(i),
               io::quote_text(series.id(i)), input.column.name, series.time_text(i, points + h));
        }
      }
    }
  }
}

}  // namespace brim::forecast
