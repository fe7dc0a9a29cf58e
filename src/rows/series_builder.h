// SPDX-License-Identifier: Apache-2.0
// Puts points on the grid of their frequency once all are known. Until then values lie in the order of the file and
// times are runs of equal gaps, so that a regular series of any length costs its values alone.
#pragma once
#include <cmath>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "rows/series_reader.h"
#include "rows/series_table.h"

namespace brim::rows {

// Successive points of one series, `gap` apart. The first point of a series is a run of its own, with gap 0.
struct TimeRun {
  static constexpr int64_t kOneStep = INT64_MIN;  // a step of the frequency, which is not known yet
  int64_t gap = 0;
  int64_t line = 0;  // of its first point
  int64_t count = 0;
  uint32_t series = 0, file = 0;
};

class SeriesBuilder {
 public:
  SeriesBuilder(const SeriesReaderOptions& options, const std::vector<std::string>& files)
      : options_(options), files_(files) {}

  // The series of this id, made where there is none yet.
  uint32_t series(std::string_view id, uint32_t file, int64_t line);
  // The same where it must be new.
  uint32_t new_series(std::string_view id, uint32_t file, int64_t line);

  // A series' next point; `time` is null where rows have none and are counted.
  void add(uint32_t series, const Timestamp* time, double value, uint32_t file, int64_t line);
  // A whole series: points at the times of `runs` from `first` on, or counted from 1.
  void add_all(uint32_t series, int64_t first, std::span<const TimeRun> runs, std::span<const float> values,
               bool timed);
  // A whole series of points one step apart, from `first` on if that is known.
  void add_steps(uint32_t series, const Timestamp* first, std::span<const float> values, uint32_t file, int64_t line);

  // All times have one zone, or none, and are all integers, or none; those of a series ascend.
  void check_style(const Timestamp& time, uint32_t file, int64_t line);
  void check_order(int64_t last, int64_t time, std::string_view id, uint32_t file, int64_t line) const;
  void note_weekday(int64_t time) {
    if (is_weekend(time)) gaps_.saw_weekend();
  }
  void note_value(uint32_t series, double value);  // how finely the series is written
  void tell_frequency(const Frequency& frequency) { told_ = frequency; }
  const std::optional<Frequency>& told() const { return told_; }
  std::string place(uint32_t file, int64_t line) const;

  SeriesTable finish(SeriesLayout layout);

 private:
  struct Made {
    int64_t first = 0, last = 0;  // times
    int64_t line = 0, points = 0, runs = 0;
    double last_value = std::nan("");
    int64_t changes = 0, vanished = 0;  // steps between values, and those that 32 bits do not show
    uint32_t file = 0;
  };
  void order_by_series();
  void choose_frequency();
  template <class Visit>
  void walk(uint32_t series, std::span<const TimeRun> runs, Visit&& visit) const;
  void lay_on_grid(SeriesTable& table);
  void drop_short(SeriesTable& table);
  void describe(SeriesTable& table) const;
  void warn_of_vanished() const;
  [[noreturn]] void refuse_off_grid(uint32_t series, int64_t time, const TimeRun& run) const;
  [[noreturn]] void refuse_gap(uint32_t series, int64_t absent, const TimeRun& run, bool too_long) const;

  const SeriesReaderOptions& options_;
  const std::vector<std::string>& files_;
  std::deque<std::string> ids_;  // their addresses are the map's keys
  std::unordered_map<std::string_view, uint32_t> by_id_;
  std::vector<Made> made_;
  std::vector<TimeRun> runs_;
  std::vector<float> values_;
  uint32_t last_series_ = UINT32_MAX;
  bool interleaved_ = false;
  bool untimed_ = false;  // there is a point without a time
  bool in_steps_ = false;
  bool numbered_ = false;  // times are not used: points are counted
  std::optional<TimeStyle> style_;
  std::optional<Frequency> told_;
  GapCount gaps_;
  Frequency frequency_;
};

}  // namespace brim::rows
