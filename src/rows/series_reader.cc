// SPDX-License-Identifier: Apache-2.0
#include "rows/series_reader.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/units.h"
#include "io/quote_text.h"
#include "rows/csv.h"
#include "rows/file_checks.h"
#include "rows/jsonl.h"
#include "rows/row_reader.h"
#include "rows/series_builder.h"

namespace brim::rows {
namespace {

constexpr size_t kMostRecordBytes = size_t{1} << 30;  // a wide row or an object holds a whole series

// Reads records or lines of one source, block by block.
class RecordStream {
 public:
  RecordStream(io::ByteSource& source, size_t block_bytes) : source_(source), block_(block_bytes) {
    while (!ended_ && used_ < kHeadBytes && text().find('\n') == std::string_view::npos) more();
    if (const std::string why = why_not_text(first_line()); !why.empty())
      fail(ErrorCode::bad_data, "{}: {}", source_.name(), why);
    if (text().starts_with("\xEF\xBB\xBF")) at_ = 3;
  }

  // Truncated if the line is long.
  std::string_view first_line() const {
    const std::string_view rest = text().substr(at_, kHeadBytes);
    return rest.substr(0, rest.find('\n'));
  }

  // Returns false at the end. Skips blank lines.
  bool next(const CsvDialect& dialect, CsvRecord& record) {
    for (;;) {
      if (at_ == used_ && ended_) return false;
      parse_csv_record(text(), at_, ended_, dialect, record);
      if (record.status == CsvStatus::incomplete) {
        more();
        continue;
      }
      line_ = lines_ + 1;
      at_ = record.next;
      lines_ += record.lines;
      if (record.status == CsvStatus::blank) continue;
      if (record.status != CsvStatus::record)
        fail(ErrorCode::bad_data, Remedy{"close the quote; double quotes inside a quoted field"},
             "{}: line {}: field {} has an unterminated or misplaced quote", source_.name(), line_,
             record.error_field + 1);
      return true;
    }
  }

  bool next_line(std::string_view& line) {
    for (;;) {
      const size_t end = text().find('\n', at_);
      if (end == std::string_view::npos && !ended_) {
        more();
        continue;
      }
      if (at_ == used_) return false;
      line = text().substr(at_, end == std::string_view::npos ? end : end - at_);
      at_ = end == std::string_view::npos ? used_ : end + 1;
      line_ = ++lines_;
      if (line.find_first_not_of(" \t\r") != std::string_view::npos) return true;
    }
  }

  int64_t line() const { return line_; }  // first line of the last record
  bool block_is_new() { return std::exchange(new_, false); }

 private:
  std::string_view text() const { return {block_.data(), used_}; }

  void more() {
    if (at_ > 0) {
      std::memmove(block_.data(), block_.data() + at_, used_ - at_);
      used_ -= at_;
      at_ = 0;
    }
    if (used_ == block_.size()) {
      if (used_ >= kMostRecordBytes)
        fail(ErrorCode::bad_data, "{}: line {}: the record is longer than {}; is this a file of series?",
             source_.name(), lines_ + 1, format_bytes(static_cast<int64_t>(kMostRecordBytes)));
      block_.resize(block_.size() * 2);
    }
    fill();
  }

  void fill() {
    const size_t n = source_.read(block_.data() + used_, block_.size() - used_);
    used_ += n;
    ended_ = n == 0;
    new_ = true;
  }

  io::ByteSource& source_;
  std::vector<char> block_;
  size_t at_ = 0, used_ = 0;
  int64_t lines_ = 0, line_ = 0;
  bool ended_ = false, new_ = false;
};

std::string_view bare(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r')) text.remove_suffix(1);
  return text;
}

bool is_number(std::string_view text) { return !bare(text).empty() && parse_series_value(text).has_value(); }
bool is_date(std::string_view text) {
  const auto time = parse_timestamp(text);
  return time && !time->is_integer();
}

// Column names used by other tools, in lower case.
constexpr std::string_view kIdNames[] = {"unique_id", "item_id", "series_id", "id", "series", "ticker", "symbol"};
constexpr std::string_view kTimeNames[] = {"ds", "timestamp", "datetime", "date", "time"};
constexpr std::string_view kTargetNames[] = {"y", "target", "value"};

std::string joined_names(const std::vector<std::string>& names) { return fmt::format("{}", fmt::join(names, ", ")); }

// Reads one file.
class FileReader {
 public:
  FileReader(io::ByteSource& source, uint32_t file, size_t files, const SeriesReaderOptions& options,
             SeriesBuilder& builder)
      : source_(source),
        file_(file),
        files_(files),
        options_(options),
        builder_(builder),
        stream_(source, std::max<size_t>(options.block_bytes, 16)) {}

  SeriesLayout read(const std::function<void()>& after_block) {
    after_block_ = after_block;
    const std::string_view path = io::without_compression(source_.name());
    if (row_format_of(path) == RowFormat::jsonl || bare(stream_.first_line()).starts_with('{')) return read_json();
    choose_delimiter(path);
    if (!next()) fail(ErrorCode::bad_data, Remedy{"give a file with series"}, "{}: is empty", source_.name());
    take_fields(fields_);
    const bool header = has_header();
    if (header) {
      if (const std::string why = why_not_utf8(record_.raw); !why.empty()) refuse(why);
      names_ = fields_;
      for (std::string& name : names_) name = std::string(bare(name));
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

 private:
  [[noreturn]] void refuse(const std::string& what, const std::string& remedy = "") const {
    fail(ErrorCode::bad_data, Remedy{remedy}, "{}: line {}: {}", source_.name(), stream_.line(), what);
  }
  [[noreturn]] void refuse_empty() const {
    fail(ErrorCode::bad_data, Remedy{"give a file with series"}, "{}: line {}: a header but no rows", source_.name(),
         header_line_);
  }

  bool next() {
    if (stream_.block_is_new()) after_block_();
    return stream_.next(dialect_, record_);
  }

  void choose_delimiter(std::string_view path) {
    dialect_.delimiter = options_.delimiter;
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

  void take_fields(std::vector<std::string>& into) {
    into.clear();
    for (const CsvField& field : record_.fields) into.emplace_back(csv_value(field, scratch_));
  }

  // Whether the first record names columns. "id,1,2,3" does; "H1,605,586" and "0.78,1.61" do not.
  bool has_header() const {
    const size_t from = fields_.size() > 1 ? 1 : 0;
    bool any = false, counts = true;
    for (size_t i = from; i < fields_.size(); ++i) {
      if (bare(fields_[i]).empty()) continue;
      const auto value = parse_series_value(fields_[i]);
      if (!value) return true;
      any = any || !std::isnan(*value);
      counts = counts && (*value == static_cast<double>(i) || *value == static_cast<double>(i - 1));
    }
    return !any || (counts && from == 1 && !is_number(fields_[0]) && !is_date(fields_[0]) && fields_.size() > 2);
  }

  std::optional<size_t> column_of(const std::string& wanted, std::span<const std::string_view> usual,
                                  const char* setting) const {
    if (!wanted.empty()) {
      const auto found = std::find(names_.begin(), names_.end(), wanted);
      if (found != names_.end()) return static_cast<size_t>(found - names_.begin());
      const std::string near = nearest_name(wanted, names_);
      fail(ErrorCode::bad_data, Remedy{fmt::format("set `{}` to an existing column", setting)},
           "{}: line {}: unknown column {}{}; {}", source_.name(), std::max<int64_t>(header_line_, 1), wanted,
           near.empty() ? "" : fmt::format(" (did you mean {}?)", near),
           names_.empty() ? "the file has no header" : "columns: " + joined_names(names_));
    }
    for (const std::string_view name : usual)
      for (size_t i = 0; i < names_.size(); ++i)
        if (same_word(names_[i], name)) return i;
    return std::nullopt;
  }

  // Detects the layout from the header and the first row.
  void detect_layout(bool header) {
    id_ = column_of(options_.id_column, kIdNames, "id_column");
    time_ = column_of(options_.time_column, kTimeNames, "time_column");
    target_ = column_of(options_.target_column, kTargetNames, "target_column");
    if (!time_ && is_date(fields_[0])) time_ = 0;
    layout_ = options_.layout;
    if (layout_ == SeriesLayout::jsonl) refuse("not a JSON object", "remove `layout`, or give a file of JSON objects");
    if (layout_ == SeriesLayout::automatic) layout_ = detected_layout(header);
    if (layout_ == SeriesLayout::long_rows) choose_target();
  }

  SeriesLayout detected_layout(bool header) const {
    if (!options_.target_column.empty() || (target_ && (time_ || id_))) return SeriesLayout::long_rows;
    if (time_) return SeriesLayout::columns;
    if (!is_number(fields_[0])) return SeriesLayout::wide;
    return header && (id_ == 0 || counts_columns()) ? SeriesLayout::wide : SeriesLayout::columns;
  }

  // V1, V2, …, the names that R gives to unnamed columns.
  bool counts_columns() const {
    for (size_t i = 0; i < names_.size(); ++i)
      if (names_[i] != fmt::format("V{}", i + 1)) return false;
    return names_.size() > 2;
  }

  void choose_target() {
    if (target_) return;
    std::vector<std::string> left;
    for (size_t i = 0; i < names_.size(); ++i)
      if (i != id_ && i != time_) {
        left.push_back(names_[i]);
        target_ = i;
      }
    if (left.size() != 1)
      fail(ErrorCode::bad_data, Remedy{"set `target_column`"},
           "{}: line {}: cannot tell which column holds the values; columns: {}", source_.name(),
           std::max<int64_t>(header_line_, 1), joined_names(names_));
  }

  std::string column_name(size_t column) const {
    return column < names_.size() && !names_[column].empty() ? names_[column] : fmt::format("{}", column + 1);
  }

  double value_of(std::string_view text, size_t column) const {
    const auto value = parse_series_value(text);
    if (!value)
      refuse(fmt::format("column {}: {} is not a number", column_name(column), io::quote_text(bare(text))),
             layout_ == SeriesLayout::columns
                 ? "set `target_column` to a numeric column, or leave missing values blank"
                 : "write numbers with a decimal point and missing values blank or as NaN");
    if (std::isinf(static_cast<float>(*value)))
      refuse(
          fmt::format("column {}: {} is not a finite 32-bit number", column_name(column), io::quote_text(bare(text))),
          "leave missing values blank, or scale the series");
    return *value;
  }

  double present_value_of(std::string_view text, size_t column) const {
    const double value = value_of(text, column);
    if (std::isnan(value) && options_.gaps == GapRule::error) refuse_absent(column);
    return value;
  }

  [[noreturn]] void refuse_absent(size_t column) const {
    refuse(fmt::format("column {}: missing value", column_name(column)),
           "set `gaps=mask` to ignore missing points, or `gaps=fill` to repeat the previous value");
  }

  Timestamp time_of(std::string_view text) const {
    const auto time = parse_timestamp(text);
    if (!time)
      refuse(fmt::format("column {}: invalid time {}", column_name(*time_), io::quote_text(bare(text))),
             "write times as ISO 8601 (2016-07-01, 2016-07-01 13:00) or as integers");
    return *time;
  }

  void check_width(size_t columns) const {
    if (record_.fields.size() != columns)
      refuse(fmt::format("{}, but the {} has {}", format_count(static_cast<int64_t>(record_.fields.size()), "field"),
                         names_.empty() ? "first row" : "header", columns));
  }

  std::string stem() const {
    const std::string path(io::without_compression(source_.name()));
    return path == "-" ? "stdin" : std::filesystem::path(path).stem().string();
  }

  void read_long() {
    const size_t columns = names_.empty() ? fields_.size() : names_.size();
    const std::string own = stem();
    do {
      check_width(columns);
      const int64_t line = stream_.line();
      const std::string_view id = id_ ? csv_value(record_.fields[*id_], scratch_) : std::string_view(own);
      if (id.empty()) refuse(fmt::format("column {}: missing id", column_name(*id_)), "give every row a series id");
      const uint32_t series = builder_.series(id, file_, line);
      const double value = present_value_of(csv_value(record_.fields[*target_], scratch_), *target_);
      if (time_) {
        const Timestamp time = time_of(csv_value(record_.fields[*time_], scratch_));
        builder_.add(series, &time, value, file_, line);
      } else {
        builder_.add(series, nullptr, value, file_, line);
      }
    } while (next());
  }

  void read_wide() {
    std::vector<float> values;
    do {
      const std::string_view id = bare(csv_value(record_.fields[0], scratch_));
      if (id.empty()) refuse("the first field (series id) is blank", "give every series an id");
      const uint32_t series = builder_.new_series(id, file_, stream_.line());
      values.clear();
      size_t last = record_.fields.size();  // values end at the last field that is not blank
      while (last > 1 && bare(record_.fields[last - 1].raw).empty()) --last;
      for (size_t i = 1; i < last; ++i) {
        const double value = present_value_of(csv_value(record_.fields[i], scratch_), i);
        builder_.note_value(series, value);
        values.push_back(static_cast<float>(value));
      }
      builder_.add_steps(series, nullptr, values, file_, stream_.line());
    } while (next());
  }

  void read_columns() {
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

  // --- objects ---

  const JsonMember* member(std::string_view key) const {
    const JsonMember* found = nullptr;
    for (const JsonMember& m : members_)
      if (json_key_is(m, key)) found = &m;
    return found;
  }

  bool next_object() {
    if (stream_.block_is_new()) after_block_();
    std::string_view line;
    if (!stream_.next_line(line)) return false;
    if (const JsonProblem problem = scan_json_object(line, members_); problem.what != nullptr)
      refuse(fmt::format("byte {}: {}", problem.at + 1, problem.what), "give one JSON object per line");
    return true;
  }

  SeriesLayout read_json() {
    if (!next_object()) fail(ErrorCode::bad_data, Remedy{"give a file with series"}, "{}: is empty", source_.name());
    const JsonMember* target = member(options_.target_column.empty() ? "target" : options_.target_column);
    layout_ = target != nullptr && target->kind == JsonKind::array ? SeriesLayout::jsonl : SeriesLayout::long_rows;
    if (options_.layout != SeriesLayout::automatic && options_.layout != layout_)
      refuse(fmt::format("the objects have the {} layout", layout_name(layout_)), "remove `layout`");
    layout_ == SeriesLayout::jsonl ? read_objects() : read_rows_of_json();
    return layout_;
  }

  std::string text_of(const JsonMember& m) const {
    return m.value_escaped ? json_unescape(m.value) : std::string(m.value);
  }

  void read_objects() {
    std::vector<float> values;
    do {
      const int64_t line = stream_.line();
      const JsonMember* target = member(options_.target_column.empty() ? "target" : options_.target_column);
      const JsonMember* id = member(options_.id_column.empty() ? "item_id" : options_.id_column);
      const JsonMember* start = member(options_.time_column.empty() ? "start" : options_.time_column);
      if (target == nullptr || target->kind != JsonKind::array)
        refuse("\"target\" is missing or not a list of numbers", "give the values of each series as \"target\"");
      const uint32_t series = builder_.new_series(id != nullptr ? text_of(*id) : fmt::format("{}", line), file_, line);
      read_targets(target->value, series, values);
      declare_frequency();
      const auto time =
          start == nullptr || start->kind == JsonKind::null ? std::nullopt : parse_timestamp(text_of(*start));
      if (start != nullptr && start->kind != JsonKind::null && !time)
        refuse(fmt::format("\"start\": invalid time {}", io::quote_text(start->value)),
               "write it as ISO 8601: 2016-07-01 13:00");
      builder_.add_steps(series, time ? &*time : nullptr, values, file_, line);
    } while (next_object());
  }

  void declare_frequency() {
    const JsonMember* declared = member("freq");
    if (declared == nullptr || declared->kind != JsonKind::string) return;
    const auto frequency = parse_frequency(declared->value);
    if (!frequency)
      refuse(fmt::format("invalid frequency {}", io::quote_text(declared->value)), "use H, D, B, W, M, Q, Y, 15min");
    if (builder_.declared_frequency() && *builder_.declared_frequency() != *frequency)
      refuse(fmt::format("\"freq\" is {}, but {} in earlier objects", frequency_name(*frequency),
                         frequency_name(*builder_.declared_frequency())),
             "give all series the same frequency");
    builder_.declare_frequency(*frequency);
  }

  // The list's grammar has been validated, its elements have not.
  void read_targets(std::string_view list, uint32_t series, std::vector<float>& values) {
    values.clear();
    list = list.substr(1, list.size() - 2);
    if (bare(list).empty()) return;
    for (size_t at = 0; at <= list.size();) {
      const size_t comma = std::min(list.find(',', at), list.size());
      std::string_view text = bare(list.substr(at, comma - at));
      if (text.size() >= 2 && text.front() == '"' && text.back() == '"') text = text.substr(1, text.size() - 2);
      const auto value = parse_series_value(text);
      if (!value || std::isinf(static_cast<float>(*value)))
        refuse(
            fmt::format("\"target\": element {}: {} is not a finite number", values.size() + 1, io::quote_text(text)),
            "write missing values as null or \"NaN\"");
      if (std::isnan(*value) && options_.gaps == GapRule::error)
        refuse(fmt::format("\"target\": element {}: missing value", values.size() + 1),
               "set `gaps=mask` to ignore missing points, or `gaps=fill` to repeat the previous value");
      builder_.note_value(series, *value);
      values.push_back(static_cast<float>(*value));
      at = comma + 1;
    }
  }

  void read_rows_of_json() {
    names_.clear();
    for (const JsonMember& m : members_) names_.push_back(m.key_escaped ? json_unescape(m.key) : std::string(m.key));
    header_line_ = stream_.line();
    id_ = column_of(options_.id_column, kIdNames, "id_column");
    time_ = column_of(options_.time_column, kTimeNames, "time_column");
    target_ = column_of(options_.target_column, kTargetNames, "target_column");
    choose_target();
    const std::string own = stem();
    do {
      const int64_t line = stream_.line();
      const JsonMember* id = id_ ? member(names_[*id_]) : nullptr;
      const JsonMember* target = member(names_[*target_]);
      const JsonMember* time = time_ ? member(names_[*time_]) : nullptr;
      for (const auto& [column, found] : {std::pair(id_, id), std::pair(target_, target), std::pair(time_, time)})
        if (column && found == nullptr)
          refuse(fmt::format("missing key \"{}\"", names_[*column]), "give every object the same keys");
      const uint32_t series = builder_.series(id != nullptr ? text_of(*id) : own, file_, line);
      const double value = present_value_of(target->value, *target_);
      const auto moment = time == nullptr ? std::nullopt : std::optional(time_of(text_of(*time)));
      builder_.add(series, moment ? &*moment : nullptr, value, file_, line);
    } while (next_object());
  }

  io::ByteSource& source_;
  uint32_t file_;
  size_t files_;
  const SeriesReaderOptions& options_;
  SeriesBuilder& builder_;
  RecordStream stream_;
  std::function<void()> after_block_;
  CsvDialect dialect_;
  CsvRecord record_;
  std::vector<JsonMember> members_;
  std::vector<std::string> fields_, names_;  // fields of the first row; names from the header
  int64_t header_line_ = 0;
  std::optional<size_t> id_, time_, target_;
  SeriesLayout layout_ = SeriesLayout::automatic;
  mutable std::string scratch_;
};

bool is_series_file(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  if (name.starts_with('.')) return false;
  return row_format_of(name) != RowFormat::txt || io::without_compression(name).ends_with(".txt");
}

SeriesTable read_all(const std::vector<std::string>& files, int64_t total, const SeriesReaderOptions& options,
                     const std::function<std::unique_ptr<io::ByteSource>(size_t)>& open) {
  SeriesBuilder builder(options, files);
  SeriesLayout layout = SeriesLayout::automatic;
  int64_t before = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    const std::unique_ptr<io::ByteSource> source = open(i);
    FileReader reader(*source, static_cast<uint32_t>(i), files.size(), options, builder);
    const SeriesLayout own = reader.read([&] {
      if (options.stop != nullptr && *options.stop)
        fail(ErrorCode::interrupted, "interrupted while reading {}", files[i]);
      if (options.progress) options.progress(before + source->position(), total);
    });
    if (i > 0 && own != layout)
      fail(ErrorCode::bad_data, Remedy{"give files of one layout"}, "{}: line 1: the layout is {}, but {} has {}",
           files[i], layout_name(own), files[0], layout_name(layout));
    layout = own;
    before += source->position();
  }
  return builder.finish(layout);
}

}  // namespace

std::optional<double> parse_series_value(std::string_view text) {
  text = bare(text);
  const double absent = std::numeric_limits<double>::quiet_NaN();
  if (text.empty()) return absent;
  const std::string_view digits = text.starts_with('+') ? text.substr(1) : text;
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error == std::errc() && end == digits.data() + digits.size()) return value;
  if (error == std::errc::result_out_of_range && end == digits.data() + digits.size())
    return std::abs(value) < 1 ? 0.0 : std::numeric_limits<double>::infinity();
  for (const char* word : {"na", "n/a", "#n/a", "null", "none", "<na>"})
    if (same_word(text, word)) return absent;
  return std::nullopt;
}

std::vector<std::string> series_files(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code ignored;
    if (!std::filesystem::is_directory(path, ignored)) {
      files.push_back(path);
      continue;
    }
    std::vector<std::string> inside;
    for (const auto& entry : std::filesystem::directory_iterator(path))
      if (entry.is_regular_file() && is_series_file(entry.path())) inside.push_back(entry.path().string());
    if (inside.empty())
      fail(ErrorCode::bad_data, Remedy{"give a folder with csv, tsv or jsonl files, optionally .gz or .zst"},
           "{}: contains no files of series", path);
    std::sort(inside.begin(), inside.end());
    files.insert(files.end(), inside.begin(), inside.end());
  }
  return files;
}

SeriesTable read_series(const std::vector<std::string>& paths, const SeriesReaderOptions& options) {
  if (paths.empty()) fail(ErrorCode::usage, Remedy{"set `data=FILE`"}, "no input series");
  const std::vector<std::string> files = series_files(paths);
  int64_t total = 0;
  for (const std::string& file : files) {
    if (file.ends_with(".parquet"))
      fail(ErrorCode::bad_data,
           Remedy{fmt::format("convert it: python -c \"import pandas; pandas.read_parquet('{}').to_csv('{}.csv', "
                              "index=False)\"",
                              file, std::filesystem::path(file).stem().string())},
           "{}: Parquet is not supported", file);
    std::error_code unknown;
    const auto bytes = std::filesystem::file_size(file, unknown);
    if (!unknown) total += static_cast<int64_t>(bytes);
  }
  return read_all(files, total, options, [&](size_t i) { return io::open_source(files[i]); });
}

SeriesTable read_series(std::unique_ptr<io::ByteSource> source, const SeriesReaderOptions& options) {
  const std::vector<std::string> files = {source->name()};
  const int64_t total = source->size();
  return read_all(files, total, options, [&](size_t) { return std::move(source); });
}

}  // namespace brim::rows
