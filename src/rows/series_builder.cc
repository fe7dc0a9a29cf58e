// SPDX-License-Identifier: Apache-2.0
#include "rows/series_builder.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "base/units.h"
#include "io/quote_text.h"
#include "rows/file_checks.h"

namespace brim::rows {
namespace {

using Unit = Frequency::Unit;
using Kind = TimeStyle::Kind;

// Limit on points added by gaps: a gap of a million points in a file of three is a wrong time.
constexpr int64_t kMostAbsent = int64_t{1} << 26, kMostAbsentPerPoint = 20;

int64_t find_present(std::span<const float> values, bool from_end) {
  const auto n = static_cast<int64_t>(values.size());
  for (int64_t i = 0; i < n; ++i) {
    const int64_t at = from_end ? n - 1 - i : i;
    if (!std::isnan(values[static_cast<size_t>(at)])) return at;
  }
  return -1;
}

}  // namespace

const char* layout_name(SeriesLayout layout) {
  switch (layout) {
    case SeriesLayout::automatic:
      return "auto";
    case SeriesLayout::long_rows:
      return "long";
    case SeriesLayout::wide:
      return "wide";
    case SeriesLayout::columns:
      return "columns";
    case SeriesLayout::jsonl:
      return "jsonl";
  }
  return "auto";
}

std::string SeriesBuilder::place(uint32_t file, int64_t line) const {
  return fmt::format("{}: line {}", files_[file], line);
}

uint32_t SeriesBuilder::series(std::string_view id, uint32_t file, int64_t line) {
  if (last_series_ != UINT32_MAX && ids_[last_series_] == id) return last_series_;
  if (const auto found = by_id_.find(id); found != by_id_.end()) return found->second;
  if (const std::string why = why_not_utf8(id); !why.empty())
    fail(ErrorCode::bad_data, "{}: the series' id: {}", place(file, line), why);
  const auto number = static_cast<uint32_t>(ids_.size());
  by_id_.emplace(ids_.emplace_back(id), number);
  Made& made = made_.emplace_back();
  made.file = file;
  made.line = line;
  return number;
}

uint32_t SeriesBuilder::new_series(std::string_view id, uint32_t file, int64_t line) {
  if (const auto found = by_id_.find(id); found != by_id_.end()) {
    const Made& made = made_[found->second];
    fail(ErrorCode::bad_data, Remedy{"give each series an id of its own"}, "{}: series {} is there already ({})",
         place(file, line), io::quote_text(id), place(made.file, made.line));
  }
  return series(id, file, line);
}

void SeriesBuilder::check_style(const Timestamp& time, uint32_t file, int64_t line) {
  if (!style_) {
    style_ = time.style;
    return;
  }
  if (*style_ == time.style) return;
  if (time.is_integer() != (style_->kind == Kind::integer))
    fail(ErrorCode::bad_data, Remedy{"write all times one way"}, "{}: the time is {}, those before are {}",
         place(file, line), time.is_integer() ? "a whole number" : "a date", time.is_integer() ? "dates" : "numbers");
  if (time.style.zone != style_->zone)
    fail(ErrorCode::bad_data, Remedy{"write all times in one zone, or all without"},
         "{}: mixed zones: this time's is {}, that of those before {}", place(file, line), zone_name(time.style),
         zone_name(*style_));
  style_->kind = std::max(style_->kind, time.style.kind);  // forecasts use the finest style
}

void SeriesBuilder::check_order(int64_t last, int64_t time, std::string_view id, uint32_t file, int64_t line) const {
  if (time > last) return;
  fail(ErrorCode::bad_data,
       Remedy{time == last ? "keep one row per time, or name the column that tells series apart with `id_column`"
                           : "sort each series by time, oldest first"},
       "{}: series {}: {} {}", place(file, line), io::quote_text(id),
       time == last ? "the time is there already:" : fmt::format("{} comes before", format_time(last, *style_)),
       format_time(time, *style_));
}

void SeriesBuilder::note_value(uint32_t series, double value) {
  Made& made = made_[series];
  if (std::isnan(value)) return;
  if (value != made.last_value && !std::isnan(made.last_value)) {
    ++made.changes;
    made.vanished += static_cast<float>(value) == static_cast<float>(made.last_value);
  }
  made.last_value = value;
}

void SeriesBuilder::add(uint32_t series, const Timestamp* time, double value, uint32_t file, int64_t line) {
  Made& made = made_[series];
  int64_t now = made.points + 1;
  if (time == nullptr) {
    untimed_ = true;
  } else {
    check_style(*time, file, line);
    now = time->value;
    if (!time->is_integer()) note_weekday(now);
  }
  int64_t gap = 0;
  if (made.points == 0) {
    made.first = now;
  } else {
    check_order(made.last, now, ids_[series], file, line);
    gap = now - made.last;
    interleaved_ = interleaved_ || series != last_series_;
  }
  if (series == last_series_ && gap != 0 && runs_.back().gap == gap && runs_.back().file == file) {
    ++runs_.back().count;
  } else {
    runs_.push_back({gap, line, 1, series, file});
    ++made.runs;
  }
  made.last = now;
  ++made.points;
  last_series_ = series;
  note_value(series, value);
  values_.push_back(static_cast<float>(value));
}

void SeriesBuilder::add_all(uint32_t series, int64_t first, std::span<const TimeRun> runs,
                            std::span<const float> values, bool timed) {
  Made& made = made_[series];
  untimed_ = untimed_ || !timed;
  made.first = first;
  made.points = static_cast<int64_t>(values.size());
  made.runs = static_cast<int64_t>(runs.size());
  for (TimeRun run : runs) {
    run.series = series;
    runs_.push_back(run);
  }
  values_.insert(values_.end(), values.begin(), values.end());
}

void SeriesBuilder::add_steps(uint32_t series, const Timestamp* first, std::span<const float> values, uint32_t file,
                              int64_t line) {
  in_steps_ = true;
  if (first != nullptr) check_style(*first, file, line);
  std::vector<TimeRun> runs;
  const auto n = static_cast<int64_t>(values.size());
  if (n > 0) runs.push_back({0, line, 1, series, file});
  if (n > 1) runs.push_back({TimeRun::kOneStep, line, n - 1, series, file});
  add_all(series, first == nullptr ? 1 : first->value, runs, values, first != nullptr);
}

// Groups interleaved rows by series; rows of one series stay in order.
void SeriesBuilder::order_by_series() {
  std::vector<int64_t> run_at(made_.size() + 1, 0), value_at(made_.size() + 1, 0);
  for (size_t s = 0; s < made_.size(); ++s) {
    run_at[s + 1] = run_at[s] + made_[s].runs;
    value_at[s + 1] = value_at[s] + made_[s].points;
  }
  std::vector<TimeRun> runs(runs_.size());
  std::vector<float> values(values_.size());
  auto from = values_.begin();
  for (const TimeRun& run : runs_) {
    runs[static_cast<size_t>(run_at[run.series]++)] = run;
    std::copy_n(from, run.count, values.begin() + value_at[run.series]);
    value_at[run.series] += run.count;
    from += run.count;
  }
  runs_ = std::move(runs);
  values_ = std::move(values);
}

void SeriesBuilder::choose_frequency() {
  const bool integers = !style_ || style_->kind == Kind::integer;
  const std::optional<Frequency> wanted = options_.frequency ? options_.frequency : told_;
  const bool wants_index = wanted && wanted->unit == Unit::index;
  numbered_ = untimed_ || (wants_index && !integers) || (in_steps_ && !wanted);
  if (numbered_) {
    frequency_ = {};
    return;
  }
  if (wanted && wants_index && wanted->count > 1) {
    frequency_ = *wanted;
    return;
  }
  if (wanted && !wants_index) {
    if (integers)
      fail(ErrorCode::bad_data, Remedy{"set `freq=index`, or write times as dates"},
           "{}: times are whole numbers, on which no {} grid can be laid", files_[0], frequency_words(*wanted));
    frequency_ = *wanted;
    return;
  }
  for (const TimeRun& run : runs_)
    if (run.gap > 0) gaps_.add(run.gap, run.count);
  frequency_ = gaps_.frequency(integers);
}

void SeriesBuilder::refuse_off_grid(uint32_t series, int64_t time, const TimeRun& run) const {
  fail(ErrorCode::bad_data,
       Remedy{"set `freq` to what divides all gaps, or `freq=index` to take points as they come, without gaps"},
       "{}: series {}: {} is no point of the {} grid ({}) that the series begins at {}", place(run.file, run.line),
       io::quote_text(ids_[series]), format_time(time, *style_), frequency_words(frequency_),
       frequency_name(frequency_), format_time(made_[series].first, *style_));
}

void SeriesBuilder::refuse_gap(uint32_t series, int64_t absent, const TimeRun& run, bool too_long) const {
  fail(ErrorCode::bad_data,
       Remedy{too_long ? "correct the time, set a coarser `freq`, or `freq=index` to take points as they come"
                       : "set `gaps=mask` to leave them out, or `gaps=fill` to repeat the value before"},
       "{}: series {}: {} absent before this one{}", place(run.file, run.line), io::quote_text(ids_[series]),
       absent == 1 ? "a point is" : fmt::format("{} points are", format_count(absent)),
       too_long ? ", far more than there are" : "");
}

// Calls visit(steps since the previous point, number of such points, their run); 0 steps for the first point.
template <class Visit>
void SeriesBuilder::walk(uint32_t series, std::span<const TimeRun> runs, Visit&& visit) const {
  int64_t time = made_[series].first, number = step_number(frequency_, time);
  for (const TimeRun& run : runs) {
    if (run.gap == 0) {
      if (!numbered_ && !on_grid(frequency_, time, time)) refuse_off_grid(series, time, run);
      visit(0, run.count, run);
    } else if (numbered_ || run.gap == TimeRun::kOneStep) {
      visit(1, run.count, run);
    } else if (frequency_.unit == Unit::index || frequency_.unit == Unit::fixed) {
      if (run.gap % frequency_.count != 0) refuse_off_grid(series, time + run.gap, run);
      visit(run.gap / frequency_.count, run.count, run);
      time += run.gap * run.count;
    } else {
      for (int64_t i = 0; i < run.count; ++i) {
        time += run.gap;
        const int64_t next = step_number(frequency_, time);
        if (next <= number || !on_grid(frequency_, made_[series].first, time)) refuse_off_grid(series, time, run);
        visit(next - number, 1, run);
        number = next;
      }
    }
  }
}

void SeriesBuilder::lay_on_grid(SeriesTable& table) {
  const auto points = static_cast<int64_t>(values_.size());
  const int64_t most = std::max(kMostAbsent, kMostAbsentPerPoint * points);
  int64_t absent = 0;
  size_t run_at = 0;
  table.begin.reserve(made_.size() + 1);
  for (uint32_t s = 0; s < made_.size(); ++s) {
    const auto runs = std::span(runs_).subspan(run_at, static_cast<size_t>(made_[s].runs));
    run_at += runs.size();
    walk(s, runs, [&](int64_t steps, int64_t count, const TimeRun& run) {
      if (steps <= 1) return;
      if (options_.gaps == GapRule::error) refuse_gap(s, steps - 1, run, false);
      if (steps - 1 > most || (steps - 1) > (most - absent) / count) refuse_gap(s, steps - 1, run, true);
      absent += (steps - 1) * count;
    });
  }
  if (absent == 0) {
    for (const Made& made : made_) table.begin.push_back(table.begin.back() + made.points);
    table.values = std::move(values_);
    return;
  }
  table.values.reserve(static_cast<size_t>(points + absent));
  auto from = values_.begin();
  run_at = 0;
  for (uint32_t s = 0; s < made_.size(); ++s) {
    const auto runs = std::span(runs_).subspan(run_at, static_cast<size_t>(made_[s].runs));
    run_at += runs.size();
    walk(s, runs, [&](int64_t steps, int64_t count, const TimeRun&) {
      for (int64_t i = 0; i < count; ++i) {
        if (steps > 1) table.values.insert(table.values.end(), static_cast<size_t>(steps - 1), std::nanf(""));
        table.values.push_back(*from++);
      }
    });
    table.begin.push_back(static_cast<int64_t>(table.values.size()));
  }
  values_ = {};
}

// Trims absent points at both ends and drops series with too few points.
void SeriesBuilder::drop_short(SeriesTable& table) {
  std::vector<int64_t> begin = {0};
  std::optional<uint32_t> first_short;
  int64_t first_short_points = 0;
  auto to = table.values.begin();
  for (uint32_t s = 0; s < made_.size(); ++s) {
    const std::span<float> all =
        std::span(table.values)
            .subspan(static_cast<size_t>(table.begin[s]), static_cast<size_t>(table.begin[s + 1] - table.begin[s]));
    const int64_t from = find_present(all, false), last = find_present(all, true);
    const auto kept =
        from < 0 ? all.first(0) : all.subspan(static_cast<size_t>(from), static_cast<size_t>(last - from + 1));
    const int64_t holes = std::count_if(kept.begin(), kept.end(), [](float v) { return std::isnan(v); });
    const auto present = static_cast<int64_t>(kept.size()) - holes;
    if (present < std::max<int64_t>(options_.min_points, 1)) {
      if (!first_short) {
        first_short = s;
        first_short_points = present;
      }
      ++table.skipped;
      continue;
    }
    table.absent += holes;
    if (options_.gaps == GapRule::fill)
      for (size_t i = 1; i < kept.size(); ++i)
        if (std::isnan(kept[i])) kept[i] = kept[i - 1];
    to = std::copy(kept.begin(), kept.end(), to);
    begin.push_back(static_cast<int64_t>(to - table.values.begin()));
    table.first.push_back(numbered_ ? 1 + from : time_after(frequency_, made_[s].first, from));
    table.ids.push_back(std::move(ids_[s]));
  }
  table.values.resize(static_cast<size_t>(begin.back()));
  table.begin = std::move(begin);
  if (!first_short) return;
  const Made& made = made_[*first_short];
  const std::string what = fmt::format(
      "{}: series {} has {}; a series needs {}", place(made.file, made.line), io::quote_text(ids_[*first_short]),
      first_short_points == 0 ? "no values" : format_count(first_short_points, "point"),
      format_count(options_.min_points));
  if (table.ids.empty()) fail(ErrorCode::bad_data, Remedy{"give series with more points"}, "{}", what);
  table.notes.push_back(
      fmt::format("{} series left out for want of points; the first: {}", format_count(table.skipped), what));
}

void SeriesBuilder::describe(SeriesTable& table) const {
  std::string what =
      fmt::format("{} layout · {} series · {} · {}", layout_name(table.layout),
                  format_count(static_cast<int64_t>(table.ids.size())),
                  format_count(static_cast<int64_t>(table.values.size()) - table.absent, "point"),
                  numbered_ ? "points numbered, without times"
                            : fmt::format("{} ({})", frequency_words(frequency_), frequency_name(frequency_)));
  if (table.absent > 0)
    what += fmt::format(" · {} absent, {}", format_count(table.absent, "point"),
                        options_.gaps == GapRule::fill ? "filled with the value before" : "masked");
  if (in_steps_ && numbered_ && style_)
    what += "; set `freq` to have forecasts dated, since objects say where a series starts but not its frequency";
  table.notes.insert(table.notes.begin(), what);
}

void SeriesBuilder::warn_of_vanished() const {
  for (uint32_t s = 0; s < made_.size(); ++s) {
    const Made& made = made_[s];
    if (made.vanished * 100 <= made.changes) continue;
    log_warning("{}: series {}: {} of its {} changes are too small for 32-bit floats beside {}; subtract a constant",
                files_[made.file], io::quote_text(ids_[s]), format_count(made.vanished), format_count(made.changes),
                made.last_value);
    return;  // one is enough
  }
}

SeriesTable SeriesBuilder::finish(SeriesLayout layout) {
  SeriesTable table;
  table.layout = layout;
  if (made_.empty())
    fail(ErrorCode::bad_data, Remedy{"name files with series in them"}, "{}: holds no series", files_[0]);
  if (interleaved_) order_by_series();
  choose_frequency();
  warn_of_vanished();
  lay_on_grid(table);
  runs_ = {};
  drop_short(table);
  table.frequency = frequency_;
  table.numbered = numbered_;
  if (style_ && !numbered_) table.style = *style_;
  describe(table);
  if (options_.gaps == GapRule::fill) table.absent = 0;
  return table;
}

}  // namespace brim::rows
