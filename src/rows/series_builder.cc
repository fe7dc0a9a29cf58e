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
    fail(ErrorCode::bad_data, "{}: invalid series id: {}", place(file, line), why);
  const auto number = static_cast<uint32_t>(ids_.size());
  by_id_.emplace(ids_.emplace_back(id), number);
  SeriesState& state = states_.emplace_back();
  state.file = file;
  state.line = line;
  return number;
}

uint32_t SeriesBuilder::new_series(std::string_view id, uint32_t file, int64_t line) {
  if (const auto found = by_id_.find(id); found != by_id_.end()) {
    const SeriesState& state = states_[found->second];
    fail(ErrorCode::bad_data, Remedy{"give each series a unique id"}, "{}: duplicate series {} (first at {})",
         place(file, line), io::quote_text(id), place(state.file, state.line));
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
    fail(ErrorCode::bad_data, Remedy{"write all times in the same format"}, "{}: the time is {}, earlier times are {}",
         place(file, line), time.is_integer() ? "an integer" : "a date", time.is_integer() ? "dates" : "integers");
  if (time.style.zone != style_->zone)
    fail(ErrorCode::bad_data, Remedy{"write all times with the same zone, or all without one"},
         "{}: mixed time zones: {} here, {} earlier", place(file, line), zone_name(time.style), zone_name(*style_));
  style_->kind = std::max(style_->kind, time.style.kind);  // forecasts use the finest style
}

void SeriesBuilder::check_order(int64_t last, int64_t time, std::string_view id, uint32_t file, int64_t line) const {
  if (time > last) return;
  fail(ErrorCode::bad_data,
       Remedy{time == last ? "keep one row per time, or set `id_column` to the column of series ids"
                           : "sort each series by time, oldest first"},
       "{}: series {}: {} {}", place(file, line), io::quote_text(id),
       time == last ? "duplicate time" : fmt::format("out of order: {} precedes", format_time(last, *style_)),
       format_time(time, *style_));
}

void SeriesBuilder::note_value(uint32_t series, double value) {
  SeriesState& state = states_[series];
  if (std::isnan(value)) return;
  if (value != state.last_value && !std::isnan(state.last_value)) {
    ++state.changes;
    state.vanished += static_cast<float>(value) == static_cast<float>(state.last_value);
  }
  state.last_value = value;
}

void SeriesBuilder::add(uint32_t series, const Timestamp* time, double value, uint32_t file, int64_t line) {
  SeriesState& state = states_[series];
  int64_t now = state.points + 1;
  if (time == nullptr) {
    untimed_ = true;
  } else {
    check_style(*time, file, line);
    now = time->value;
    if (!time->is_integer()) note_weekday(now);
  }
  int64_t gap = 0;
  if (state.points == 0) {
    state.first = now;
  } else {
    check_order(state.last, now, ids_[series], file, line);
    gap = now - state.last;
    interleaved_ = interleaved_ || series != last_series_;
  }
  if (series == last_series_ && gap != 0 && runs_.back().gap == gap && runs_.back().file == file) {
    ++runs_.back().count;
  } else {
    runs_.push_back({gap, line, 1, series, file});
    ++state.runs;
  }
  state.last = now;
  ++state.points;
  last_series_ = series;
  note_value(series, value);
  values_.push_back(static_cast<float>(value));
}

void SeriesBuilder::add_all(uint32_t series, int64_t first, std::span<const TimeRun> runs,
                            std::span<const float> values, bool timed) {
  SeriesState& state = states_[series];
  untimed_ = untimed_ || !timed;
  state.first = first;
  state.points = static_cast<int64_t>(values.size());
  state.runs = static_cast<int64_t>(runs.size());
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
  std::vector<int64_t> run_at(states_.size() + 1, 0), value_at(states_.size() + 1, 0);
  for (size_t s = 0; s < states_.size(); ++s) {
    run_at[s + 1] = run_at[s] + states_[s].runs;
    value_at[s + 1] = value_at[s] + states_[s].points;
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
  const std::optional<Frequency> wanted = options_.frequency ? options_.frequency : declared_frequency_;
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
           "{}: times are integers, which do not fit the {} grid", files_[0], frequency_words(*wanted));
    frequency_ = *wanted;
    return;
  }
  for (const TimeRun& run : runs_)
    if (run.gap > 0) gaps_.add(run.gap, run.count);
  frequency_ = gaps_.frequency(integers);
}

void SeriesBuilder::refuse_off_grid(uint32_t series, int64_t time, const TimeRun& run) const {
  fail(ErrorCode::bad_data,
       Remedy{"set `freq` to a divisor of all gaps, or `freq=index` to number the points without gaps"},
       "{}: series {}: {} is not on the {} grid ({}) that starts at {}", place(run.file, run.line),
       io::quote_text(ids_[series]), format_time(time, *style_), frequency_words(frequency_),
       frequency_name(frequency_), format_time(states_[series].first, *style_));
}

void SeriesBuilder::refuse_gap(uint32_t series, int64_t absent, const TimeRun& run, bool too_long) const {
  fail(ErrorCode::bad_data,
       Remedy{too_long ? "correct the time, set a coarser `freq`, or set `freq=index` to number the points without gaps"
                       : "set `gaps=mask` to ignore them, or `gaps=fill` to repeat the previous value"},
       "{}: series {}: {} missing before this point{}", place(run.file, run.line), io::quote_text(ids_[series]),
       format_count(absent, "point"), too_long ? ", far more than are present" : "");
}

// Calls visit(steps since the previous point, number of such points, their run); 0 steps for the first point.
template <class Visit>
void SeriesBuilder::walk(uint32_t series, std::span<const TimeRun> runs, Visit&& visit) const {
  int64_t time = states_[series].first, number = step_number(frequency_, time);
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
        if (next <= number || !on_grid(frequency_, states_[series].first, time)) refuse_off_grid(series, time, run);
        visit(next - number, 1, run);
        number = next;
      }
    }
  }
}

void SeriesBuilder::align_to_grid(SeriesTable& table) {
  const auto points = static_cast<int64_t>(values_.size());
  const int64_t most = std::max(kMostAbsent, kMostAbsentPerPoint * points);
  int64_t absent = 0;
  size_t run_at = 0;
  table.begin.reserve(states_.size() + 1);
  for (uint32_t s = 0; s < states_.size(); ++s) {
    const auto runs = std::span(runs_).subspan(run_at, static_cast<size_t>(states_[s].runs));
    run_at += runs.size();
    walk(s, runs, [&](int64_t steps, int64_t count, const TimeRun& run) {
      if (steps <= 1) return;
      if (options_.gaps == GapRule::error) refuse_gap(s, steps - 1, run, false);
      if (steps - 1 > most || (steps - 1) > (most - absent) / count) refuse_gap(s, steps - 1, run, true);
      absent += (steps - 1) * count;
    });
  }
  if (absent == 0) {
    for (const SeriesState& state : states_) table.begin.push_back(table.begin.back() + state.points);
    table.values = std::move(values_);
    return;
  }
  table.values.reserve(static_cast<size_t>(points + absent));
  auto from = values_.begin();
  run_at = 0;
  for (uint32_t s = 0; s < states_.size(); ++s) {
    const auto runs = std::span(runs_).subspan(run_at, static_cast<size_t>(states_[s].runs));
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
  for (uint32_t s = 0; s < states_.size(); ++s) {
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
    table.first.push_back(numbered_ ? 1 + from : time_after(frequency_, states_[s].first, from));
    table.ids.push_back(std::move(ids_[s]));
  }
  table.values.resize(static_cast<size_t>(begin.back()));
  table.begin = std::move(begin);
  if (!first_short) return;
  const SeriesState& state = states_[*first_short];
  const std::string what = fmt::format(
      "{}: series {} has {}, fewer than {}", place(state.file, state.line), io::quote_text(ids_[*first_short]),
      first_short_points == 0 ? "no values" : format_count(first_short_points, "point"),
      format_count(options_.min_points));
  if (table.ids.empty()) fail(ErrorCode::bad_data, Remedy{"give series with more points"}, "{}", what);
  table.notes.push_back(
      fmt::format("{} series with too few points omitted; the first: {}", format_count(table.skipped), what));
}

void SeriesBuilder::describe(SeriesTable& table) const {
  std::string what =
      fmt::format("{} layout · {} series · {} · {}", layout_name(table.layout),
                  format_count(static_cast<int64_t>(table.ids.size())),
                  format_count(static_cast<int64_t>(table.values.size()) - table.absent, "point"),
                  numbered_ ? "numbered points, no times"
                            : fmt::format("{} ({})", frequency_words(frequency_), frequency_name(frequency_)));
  if (table.absent > 0)
    what += fmt::format(" · {} missing, {}", format_count(table.absent, "point"),
                        options_.gaps == GapRule::fill ? "filled with the previous value" : "masked");
  if (in_steps_ && numbered_ && style_)
    what += "; forecasts have no dates because the objects give a start but no frequency; set `freq` to add them";
  table.notes.insert(table.notes.begin(), what);
}

void SeriesBuilder::warn_about_precision_loss() const {
  for (uint32_t s = 0; s < states_.size(); ++s) {
    const SeriesState& state = states_[s];
    if (state.vanished * 100 <= state.changes) continue;
    log_warning("{}: series {}: {} of {} changes are lost in 32-bit precision at values around {}; subtract a constant",
                files_[state.file], io::quote_text(ids_[s]), format_count(state.vanished), format_count(state.changes),
                state.last_value);
    return;  // one is enough
  }
}

SeriesTable SeriesBuilder::finish(SeriesLayout layout) {
  SeriesTable table;
  table.layout = layout;
  if (states_.empty())
    fail(ErrorCode::bad_data, Remedy{"give a file with series"}, "{}: contains no series", files_[0]);
  if (interleaved_) order_by_series();
  choose_frequency();
  warn_about_precision_loss();
  align_to_grid(table);
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
