// SPDX-License-Identifier: Apache-2.0
#include "rows/series_file.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

#include "base/error.h"
#include "base/units.h"
#include "io/quote_text.h"
#include "rows/row_reader.h"

namespace brim::rows {
namespace {

bool is_number(std::string_view text) { return !bare_field(text).empty() && parse_series_value(text).has_value(); }
bool is_date(std::string_view text) {
  const auto time = parse_timestamp(text);
  return time && !time->is_integer();
}

// Column names used by other tools, in lower case.
constexpr std::string_view kIdNames[] = {"unique_id", "item_id", "series_id", "id", "series", "ticker", "symbol"};
constexpr std::string_view kTimeNames[] = {"ds", "timestamp", "datetime", "date", "time"};
constexpr std::string_view kTargetNames[] = {"y", "target", "value"};

}  // namespace

SeriesLayout SeriesFileReader::read(const std::function<void()>& after_block) {
  after_block_ = after_block;
  const std::string_view path = io::without_compression(source_.name());
  if (row_format_of(path) == RowFormat::jsonl || bare_field(stream_.first_line()).starts_with('{')) return read_json();
  choose_delimiter(path);
  if (!next()) fail(ErrorCode::bad_data, Remedy{"give a file with series"}, "{}: is empty", source_.name());
  take_fields(fields_);
  const bool header = has_header();
  if (header) {
    if (const std::string why = why_not_utf8(record_.raw); !why.empty()) refuse(why);
    names_ = fields_;
    for (std::string& name : names_) name = std::string(bare_field(name));
    header_line_ = stream_.line();
    if (!next()) refuse_empty();
    take_fields(fields_);
  }
  detect_layout(header);
  switch (layout_) {
    case SeriesLayout::long_rows:
      read_long();
      break;
    case SeriesLayout::wide:
      read_wide();
      break;
    default:
      read_columns();
  }
  return layout_;
}

void SeriesFileReader::refuse(const std::string& what, const std::string& remedy) const {
  fail(ErrorCode::bad_data, Remedy{remedy}, "{}: line {}: {}", source_.name(), stream_.line(), what);
}

void SeriesFileReader::refuse_empty() const {
  fail(ErrorCode::bad_data, Remedy{"give a file with series"}, "{}: line {}: a header but no rows", source_.name(),
       header_line_);
}

bool SeriesFileReader::next() {
  if (stream_.block_is_new()) after_block_();
  return stream_.next(dialect_, record_);
}

void SeriesFileReader::choose_delimiter(std::string_view path) {
  dialect_.delimiter = options_.delimiter;
  const std::optional<char> separator = excel_separator(bare_field(stream_.first_line()));
  if (std::string_view line; separator) stream_.next_line(line);
  if (dialect_.delimiter == 0) dialect_.delimiter = separator.value_or('\0');
  if (dialect_.delimiter != 0) return;
  if (row_format_of(path) == RowFormat::tsv) {
    dialect_.delimiter = '\t';
    return;
  }
  // Sheets saved as csv may use semicolons or tabs: use the most frequent one in the first line.
  dialect_.delimiter = ',';
  const std::string_view line = stream_.first_line();
  for (const char c : {';', '\t', '|'})
    if (std::count(line.begin(), line.end(), c) > std::count(line.begin(), line.end(), dialect_.delimiter))
      dialect_.delimiter = c;
}

void SeriesFileReader::take_fields(std::vector<std::string>& into) {
  into.clear();
  for (const CsvField& field : record_.fields) into.emplace_back(csv_value(field, scratch_));
}

bool SeriesFileReader::has_header() const {
  const size_t from = fields_.size() > 1 ? 1 : 0;
  bool any = false, counts = true;
  for (size_t i = from; i < fields_.size(); ++i) {
    if (bare_field(fields_[i]).empty()) continue;
    const auto value = parse_series_value(fields_[i]);
    if (!value) return true;
    any = any || !std::isnan(*value);
    counts = counts && (*value == static_cast<double>(i) || *value == static_cast<double>(i - 1));
  }
  return !any || (counts && from == 1 && !is_number(fields_[0]) && !is_date(fields_[0]) && fields_.size() > 2);
}

std::optional<size_t> SeriesFileReader::column_of(const std::string& wanted, std::span<const std::string_view> usual,
                                                  const char* setting) const {
  if (!wanted.empty()) {
    const auto found = std::find(names_.begin(), names_.end(), wanted);
    if (found != names_.end()) return static_cast<size_t>(found - names_.begin());
    const std::string near = nearest_name(wanted, names_);
    fail(ErrorCode::bad_data, Remedy{fmt::format("set `{}` to an existing column", setting)},
         "{}: line {}: unknown column {}{}; {}", source_.name(), std::max<int64_t>(header_line_, 1), wanted,
         near.empty() ? "" : fmt::format(" (did you mean {}?)", near),
         names_.empty() ? "the file has no header" : "columns: " + some_names(names_));
  }
  for (const std::string_view name : usual)
    for (size_t i = 0; i < names_.size(); ++i)
      if (same_word(names_[i], name)) return i;
  return std::nullopt;
}

void SeriesFileReader::find_columns() {
  id_ = column_of(options_.id_column, kIdNames, "id_column");
  time_ = column_of(options_.time_column, kTimeNames, "time_column");
  find_target();
}

void SeriesFileReader::detect_layout(bool header) {
  find_columns();
  if (!time_ && is_date(fields_[0])) time_ = 0;
  layout_ = options_.layout;
  if (layout_ == SeriesLayout::jsonl) refuse("not a JSON object", "remove `layout`, or give a file of JSON objects");
  if (layout_ == SeriesLayout::automatic) layout_ = detected_layout(header);
  if (layout_ == SeriesLayout::long_rows) {
    find_covariates();
    choose_target();
  } else if (!options_.covariates.empty()) {
    fail(ErrorCode::bad_data,
         Remedy{"set `target_column`, or give one row per point: unique_id, ds, y and the covariates"},
         "{}: line {}: column {}: the file has the {} layout, which has no covariates", source_.name(),
         std::max<int64_t>(header_line_, 1), options_.covariates[0].name, layout_name(layout_));
  }
}

void SeriesFileReader::find_target() {
  const bool absent = file_ > 0 && !options_.covariates.empty() && !options_.target_column.empty() &&
                      std::find(names_.begin(), names_.end(), options_.target_column) == names_.end();
  if (absent) return;
  target_ = column_of(options_.target_column, kTargetNames, "target_column");
  const auto is_wanted = [&](const CovariateColumn& column) { return column.name == names_[*target_]; };
  if (target_ && options_.target_column.empty() &&
      std::any_of(options_.covariates.begin(), options_.covariates.end(), is_wanted))
    target_ = std::nullopt;
}

void SeriesFileReader::find_covariates() {
  constexpr const char* kSettings[] = {"future_columns", "past_columns", "static_columns"};
  for (const CovariateColumn& column : options_.covariates) {
    const bool absent = file_ > 0 && column.kind != CovariateKind::future &&
                        std::find(names_.begin(), names_.end(), column.name) == names_.end();
    covariate_at_.push_back(absent ? kAbsent
                                   : *column_of(column.name, {}, kSettings[static_cast<size_t>(column.kind)]));
  }
  covariate_row_.assign(covariate_at_.size(), std::numeric_limits<double>::quiet_NaN());
}

bool SeriesFileReader::is_covariate(size_t column) const {
  return std::find(covariate_at_.begin(), covariate_at_.end(), column) != covariate_at_.end();
}

bool SeriesFileReader::is_omitted(size_t column) const {
  return std::find(options_.omitted.begin(), options_.omitted.end(), names_[column]) != options_.omitted.end();
}

double SeriesFileReader::covariate_value(size_t c, std::string_view text) {
  if (options_.covariates[c].categorical) return covariates_.category(c, bare_field(text));
  const auto value = parse_series_value(text);
  if (!value || std::isinf(static_cast<float>(*value)))
    refuse(fmt::format("column {}: {} is not a finite number", options_.covariates[c].name,
                       io::quote_text(bare_field(text))),
           fmt::format("list the column in `categorical`, or leave missing values blank"));
  return *value;
}

SeriesLayout SeriesFileReader::detected_layout(bool header) const {
  if (!options_.target_column.empty() || (target_ && (time_ || id_))) return SeriesLayout::long_rows;
  if (file_ > 0 && !options_.covariates.empty()) return SeriesLayout::long_rows;
  if (time_) return SeriesLayout::columns;
  if (!is_number(fields_[0])) return SeriesLayout::wide;
  return header && (id_ == 0 || counts_columns()) ? SeriesLayout::wide : SeriesLayout::columns;
}

bool SeriesFileReader::counts_columns() const {
  for (size_t i = 0; i < names_.size(); ++i)
    if (names_[i] != fmt::format("V{}", i + 1)) return false;
  return names_.size() > 2;
}

void SeriesFileReader::choose_target() {
  if (target_) return;
  std::vector<std::string> left;
  for (size_t i = 0; i < names_.size(); ++i)
    if (i != id_ && i != time_ && !is_covariate(i) && !is_omitted(i)) {
      left.push_back(names_[i]);
      target_ = i;
    }
  if (file_ > 0 && !covariate_at_.empty() && (left.empty() || !options_.target_column.empty())) {
    target_ = std::nullopt;
    return;
  }
  if (left.size() != 1)
    fail(ErrorCode::bad_data, Remedy{"set `target_column`"},
         "{}: line {}: cannot tell which column holds the values; columns: {}", source_.name(),
         std::max<int64_t>(header_line_, 1), some_names(names_));
}

std::string SeriesFileReader::column_name(size_t column) const {
  return column < names_.size() && !names_[column].empty() ? names_[column] : fmt::format("{}", column + 1);
}

double SeriesFileReader::value_of(std::string_view text, size_t column) const {
  const auto value = parse_series_value(text);
  if (!value)
    refuse(fmt::format("column {}: {} is not a number", column_name(column), io::quote_text(bare_field(text))),
           layout_ == SeriesLayout::columns ? "set `target_column` to a numeric column, or leave missing values blank"
                                            : "write numbers with a decimal point and missing values blank or as NaN");
  if (std::isinf(static_cast<float>(*value)))
    refuse(fmt::format("column {}: {} is not a finite 32-bit number", column_name(column),
                       io::quote_text(bare_field(text))),
           "leave missing values blank, or scale the series");
  return *value;
}

double SeriesFileReader::present_value_of(std::string_view text, size_t column) const {
  const double value = value_of(text, column);
  if (std::isnan(value) && options_.gaps == GapRule::error) refuse_absent(column);
  return value;
}

void SeriesFileReader::refuse_absent(size_t column) const {
  refuse(fmt::format("column {}: missing value", column_name(column)),
         "set `gaps=mask` to ignore missing points, or `gaps=fill` to repeat the previous value");
}

Timestamp SeriesFileReader::time_of(std::string_view text) const {
  const auto time = parse_timestamp(text);
  if (!time)
    refuse(fmt::format("column {}: invalid time {}", column_name(*time_), io::quote_text(bare_field(text))),
           "write times as ISO 8601 (2016-07-01, 2016-07-01 13:00) or as integers");
  return *time;
}

void SeriesFileReader::check_width(size_t columns) const {
  if (record_.fields.size() != columns)
    refuse(fmt::format("{}, but the {} has {}", format_count(static_cast<int64_t>(record_.fields.size()), "field"),
                       names_.empty() ? "first row" : "header", columns));
}

std::string SeriesFileReader::unused_columns() const {
  constexpr size_t kMost = 10;
  if (layout_ != SeriesLayout::long_rows) return "";
  std::vector<std::string> unused;
  for (size_t i = 0; i < names_.size(); ++i)
    if (i != id_ && i != time_ && i != target_ && !is_covariate(i) && !is_omitted(i)) unused.push_back(column_name(i));
  if (unused.empty()) return "";
  const size_t more = unused.size() - std::min(unused.size(), kMost);
  unused.resize(unused.size() - more);
  return fmt::format("columns not used: {}{}", some_names(unused), more > 0 ? fmt::format(" and {} more", more) : "");
}

std::string SeriesFileReader::absent_columns() const {
  std::vector<std::string> absent;
  for (size_t c = 0; target_ && c < covariate_at_.size(); ++c)
    if (covariate_at_[c] == kAbsent) absent.push_back(options_.covariates[c].name);
  return absent.empty() ? "" : fmt::format("{} has no column {}", source_.name(), some_names(absent));
}

std::string SeriesFileReader::stem() const {
  const std::string path(io::without_compression(source_.name()));
  return path == "-" ? "stdin" : std::filesystem::path(path).stem().string();
}

void SeriesFileReader::read_long() {
  const size_t columns = names_.empty() ? fields_.size() : names_.size();
  const std::string own = stem();
  do {
    check_width(columns);
    const int64_t line = stream_.line();
    const std::string_view id = id_ ? csv_value(record_.fields[*id_], scratch_) : std::string_view(own);
    if (id.empty()) refuse(fmt::format("column {}: missing id", column_name(*id_)), "give every row a series id");
    const uint32_t series = builder_.series(id, file_, line);
    const double value = target_ ? present_value_of(csv_value(record_.fields[*target_], scratch_), *target_)
                                 : std::numeric_limits<double>::quiet_NaN();
    std::optional<Timestamp> time;
    if (time_) time = time_of(csv_value(record_.fields[*time_], scratch_));
    builder_.add(series, time ? &*time : nullptr, value, file_, line);
    if (covariate_at_.empty()) continue;
    for (size_t c = 0; c < covariate_at_.size(); ++c)
      if (covariate_at_[c] != kAbsent)
        covariate_row_[c] = covariate_value(c, csv_value(record_.fields[covariate_at_[c]], scratch_));
    covariates_.add(builder_.id(series), time ? &*time : nullptr, covariate_row_, file_, line);
  } while (next());
}

void SeriesFileReader::read_wide() {
  std::vector<float> values;
  do {
    const std::string_view id = bare_field(csv_value(record_.fields[0], scratch_));
    if (id.empty()) refuse("the first field (series id) is blank", "give every series an id");
    const uint32_t series = builder_.new_series(id, file_, stream_.line());
    values.clear();
    size_t last = record_.fields.size();  // values end at the last field that is not blank
    while (last > 1 && bare_field(record_.fields[last - 1].raw).empty()) --last;
    for (size_t i = 1; i < last; ++i) {
      const double value = present_value_of(csv_value(record_.fields[i], scratch_), i);
      builder_.note_value(series, value);
      values.push_back(static_cast<float>(value));
    }
    builder_.add_steps(series, nullptr, values, file_, stream_.line());
  } while (next());
}

void SeriesFileReader::read_columns() {
  const size_t columns = names_.empty() ? fields_.size() : names_.size();
  std::vector<size_t> of;  // column of each series
  std::vector<uint32_t> series;
  for (size_t i = 0; i < columns; ++i) {
    if (i == time_) continue;
    of.push_back(i);
    const std::string name = files_ > 1 ? fmt::format("{}/{}", stem(), column_name(i)) : column_name(i);
    series.push_back(builder_.new_series(name, file_, std::max<int64_t>(header_line_, 1)));
  }
  std::vector<std::vector<float>> values(of.size());
  std::vector<TimeRun> runs;
  int64_t first = 1, last = 0;
  do {
    check_width(columns);
    const int64_t line = stream_.line();
    int64_t now = last + 1;
    if (time_) {
      const Timestamp time = time_of(csv_value(record_.fields[*time_], scratch_));
      builder_.check_style(time, file_, line);
      if (!runs.empty()) builder_.check_order(last, time.value, column_name(of.empty() ? 0 : of[0]), file_, line);
      if (!time.is_integer()) builder_.note_weekday(time.value);
      now = time.value;
    }
    const int64_t gap = runs.empty() ? 0 : now - last;
    if (runs.empty()) first = now;
    if (gap != 0 && runs.back().gap == gap)
      ++runs.back().count;
    else
      runs.push_back({gap, line, 1, 0, file_});
    last = now;
    for (size_t c = 0; c < of.size(); ++c) {
      const double value = present_value_of(csv_value(record_.fields[of[c]], scratch_), of[c]);
      builder_.note_value(series[c], value);
      values[c].push_back(static_cast<float>(value));
    }
  } while (next());
  for (size_t c = 0; c < of.size(); ++c) {
    builder_.add_all(series[c], first, runs, values[c], time_.has_value());
    values[c] = {};
  }
}

}  // namespace brim::rows
