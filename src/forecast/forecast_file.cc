// SPDX-License-Identifier: Apache-2.0
#include "forecast/forecast_file.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "base/units.h"
#include "io/quote_text.h"
#include "rows/csv.h"
#include "rows/jsonl.h"

namespace brim::forecast {
namespace {

constexpr size_t kFlushBytes = size_t{1} << 18;

// Column names of a csv or tsv file, or keys of the first jsonl object.
std::vector<std::string> column_names(const std::string& path, char delimiter) {
  const std::string head = io::read_head(path, size_t{64} << 10);
  std::vector<std::string> names;
  if (head.starts_with('{')) {
    std::vector<rows::JsonMember> members;
    if (rows::scan_json_object(std::string_view(head).substr(0, head.find('\n')), members).what != nullptr) return {};
    for (const auto& member : members) names.emplace_back(member.key);
    return names;
  }
  rows::CsvRecord header;
  const char separator = delimiter != 0 ? delimiter : rows::row_format_of(path) == rows::RowFormat::tsv ? '\t' : ',';
  rows::parse_csv_record(head, head.starts_with("\xEF\xBB\xBF") ? 3 : 0, true, {separator, true}, header);
  std::string scratch;
  for (const auto& field : header.fields) names.emplace_back(csv_value(field, scratch));
  return names;
}

bool is_other_column(const std::string& name) {
  for (const char* other : {"unique_id", "ds", "cutoff", "y"})
    if (same_word(name, other)) return true;
  return name.find("-lo-") != std::string::npos || name.find("-hi-") != std::string::npos;
}

using Values = std::function<std::vector<double>(int64_t series, int64_t horizon)>;

Values values_of(const std::string& path, const std::string& column, const SeriesStore& data,
                 rows::SeriesReaderOptions options) {
  options = options_after(data, std::move(options));
  options.target_column = column;
  auto store = std::make_shared<SeriesStore>(rows::read_series({path}, options));
  return [store, &data, path, column](int64_t series, int64_t horizon) {
    const auto own = store->find(data.id(series));
    const auto refuse = [&](int64_t step) {
      fail(ErrorCode::bad_data, Remedy{"provide a forecast for every step of the actual values"},
           "{}: no {} for series {}{}", path, column.empty() ? "forecast" : column, io::quote_text(data.id(series)),
           step == 0 ? "" : fmt::format(", step {} of {}", step, horizon));
    };
    if (!own) refuse(0);
    const auto values = store->series(*own);
    const int64_t first = steps_after(data, series, *store, *own);
    std::vector<double> out;
    for (int64_t h = 1; h <= horizon; ++h) {
      const int64_t at = h - first;
      if (at < 0 || at >= static_cast<int64_t>(values.size()) || std::isnan(values[static_cast<size_t>(at)])) refuse(h);
      out.push_back(static_cast<double>(values[static_cast<size_t>(at)]));
    }
    return out;
  };
}

}  // namespace

rows::SeriesReaderOptions options_after(const SeriesStore& data, rows::SeriesReaderOptions options) {
  options.min_points = 1;
  if (!data.numbered())
    options.frequency = data.frequency();
  else if (options.frequency && options.frequency->unit != rows::Frequency::Unit::index)
    options.frequency.reset();  // the points have numbers, which fit no grid of times
  return options;
}

ForecastWriter::ForecastWriter(const std::string& path, std::vector<std::string> columns, const std::atomic<bool>* stop,
                               bool rolling)
    : columns_(std::move(columns)), format_(rows::RowFormat::csv), rolling_(rolling) {
  if (path == "-") {
    sink_ = io::make_sink(STDOUT_FILENO, "stdout", stop);
  } else {
    file_ = std::make_unique<io::AtomicFile>(path);
    file_->stop_by(stop);
    sink_ = io::make_sink(*file_, io::compression_of(path));
    if (const auto named = rows::row_format_of(path); named != rows::RowFormat::txt) format_ = named;
  }
  if (format_ == rows::RowFormat::jsonl) return;
  const char separator = format_ == rows::RowFormat::tsv ? '\t' : ',';
  text_ = std::string("unique_id") + separator + "ds";
  if (rolling_) text_ += std::string(1, separator) + "cutoff";
  for (const std::string& column : columns_) {
    text_ += separator;
    rows::append_csv_field(text_, column, separator);
  }
  text_ += '\n';
}

ForecastWriter::~ForecastWriter() = default;

void ForecastWriter::write(std::string_view id, std::string_view ds, std::span<const double> values,
                           std::string_view cutoff) {
  BRIM_CHECK(values.size() == columns_.size(), "{} values, {} columns", values.size(), columns_.size());
  if (format_ == rows::RowFormat::jsonl) {
    text_ += "{\"unique_id\": ";
    rows::append_json_string(text_, id);
    text_ += ", \"ds\": ";
    rows::append_json_string(text_, ds);
    if (rolling_) {
      text_ += ", \"cutoff\": ";
      rows::append_json_string(text_, cutoff);
    }
    for (size_t i = 0; i < values.size(); ++i) {
      text_ += ", ";
      rows::append_json_string(text_, columns_[i]);
      text_ += ": ";
      rows::append_json_number(text_, static_cast<float>(values[i]));
    }
    text_ += "}\n";
  } else {
    const char separator = format_ == rows::RowFormat::tsv ? '\t' : ',';
    rows::append_csv_field(text_, id, separator);
    text_ += separator;
    rows::append_csv_field(text_, ds, separator);
    if (rolling_) {
      text_ += separator;
      rows::append_csv_field(text_, cutoff, separator);
    }
    for (const double value : values) {
      text_ += separator;
      if (!std::isnan(value)) fmt::format_to(std::back_inserter(text_), "{}", static_cast<float>(value));
    }
    text_ += '\n';
  }
  if (text_.size() > kFlushBytes) flush();
}

void ForecastWriter::flush() {
  sink_->write(text_);
  text_.clear();
}

void ForecastWriter::commit() {
  flush();
  sink_->end_member();
  if (file_) file_->commit();
}

Forecaster read_forecasts(const std::string& path, const std::string& column, const SeriesStore& data,
                          rows::SeriesReaderOptions options, std::string* name) {
  const std::vector<std::string> columns = column_names(path, options.delimiter);
  const bool has_ids = std::find(columns.begin(), columns.end(), "unique_id") != columns.end();
  std::string own = column;
  if (own.empty() && has_ids) {
    const auto found = std::find_if(columns.begin(), columns.end(), [](const auto& c) { return !is_other_column(c); });
    if (found == columns.end())
      fail(ErrorCode::bad_data, Remedy{"set `alias` to the forecast column"},
           "{}: line 1: no forecast column; columns: {}", path, some_names(columns));
    own = *found;
  }
  options.id_column.clear();  // these belong to the training data
  options.time_column.clear();
  options.layout = rows::SeriesLayout::automatic;
  Forecaster forecaster;
  forecaster.values = values_of(path, own, data, options);
  *name = own.empty() ? path : own;
  const std::string prefix = own + "-lo-";
  for (const std::string& low : columns) {
    if (!low.starts_with(prefix)) continue;
    double level = 0;
    const auto [end, error] = std::from_chars(low.data() + prefix.size(), low.data() + low.size(), level);
    const std::string high = own + "-hi-" + low.substr(prefix.size());
    if (error != std::errc() || end != low.data() + low.size() || !(level > 0 && level < 100)) continue;
    if (std::find(columns.begin(), columns.end(), high) == columns.end()) continue;
    forecaster.intervals.push_back({level, values_of(path, low, data, options), values_of(path, high, data, options)});
  }
  return forecaster;
}

}  // namespace brim::forecast
