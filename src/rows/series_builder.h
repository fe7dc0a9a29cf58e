// SPDX-License-Identifier: Apache-2.0
// Places points on the grid of their frequency once all are known. Until then values are stored in file order and times
// as runs of equal gaps, so that a regular series costs only its values.
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

// Successive points of one series, `gap` apart. The first point of a series is a separate run with gap 0.
struct TimeRun {
  static constexpr int64_t kOneStep = INT64_MIN;  // one step of the frequency, which is not known yet
  int64_t gap = 0;
  int64_t line = 0;  // line of the first point
  int64_t count = 0;
  uint32_t series = 0, file = 0;
};

class SeriesBuilder {
 public:
  SeriesBuilder(const SeriesReaderOptions& options, const std::vector<std::string>& files)
      : options_(options), files_(files) {}

  // Returns the series with this id; creates it if it does not exist.
  uint32_t series(std::string_view id, uint32_t file, int64_t line);
  // The same, but the series must be new.
  uint32_t new_series(std::string_view id, uint32_t file, int64_t line);

  std::string_view id(uint32_t series) const { return ids_[series]; }

  // Adds the next point of a series; `time` is null if rows have no times and are numbered.
  void add(uint32_t series, const Timestamp* time, double value, uint32_t file, int64_t line);
  // Adds a whole series: points at the times of `runs`, starting at `first`, or numbered from 1.
  void add_all(uint32_t series, int64_t first, std::span<const TimeRun> runs, std::span<const float> values,
               bool timed);
  // Adds a whole series of points one step apart, starting at `first` if known.
  void add_steps(uint32_t series, const Timestamp* first, std::span<const float> values, uint32_t file, int64_t line);

  // Checks that all times have the same zone or none, that all or none are integers, and that times of a series ascend.
  void check_style(const Timestamp& time, uint32_t file, int64_t line);
  void check_order(int64_t last, int64_t time, std::string_view id, uint32_t file, int64_t line) const;
  void note_weekday(int64_t time) {
    if (is_weekend(time)) gaps_.saw_weekend();
  }
  void note_value(uint32_t series, double value);  // tracks the precision of the values
  void number_points() { untimed_ = true; }        // ignores times
  void declare_frequency(const Frequency& frequency) { declared_frequency_ = frequency; }
  const std::optional<Frequency>& declared_frequency() const { return declared_frequency_; }
  std::string place(uint32_t file, int64_t line) const;

  SeriesTable finish(SeriesLayout layout);

 private:
  struct SeriesState {
    int64_t first = 0, last = 0;  // times
    int64_t line = 0, points = 0, runs = 0;
    double last_value = std::nan("");
    int64_t changes = 0, vanished = 0;  // changes between values, and those lost in 32-bit precision
    uint32_t file = 0;
  };
  void order_by_series();
  void choose_frequency();
  template <class Visit>
  void walk(uint32_t series, std::span<const TimeRun> runs, Visit&& visit) const;
  void align_to_grid(SeriesTable& table);
  void drop_short(SeriesTable& table);
  void describe(SeriesTable& table) const;
  void warn_about_precision_loss() const;
  [[noreturn]] void refuse_off_grid(uint32_t series, int64_t time, const TimeRun& run) const;
  [[noreturn]] void refuse_gap(uint32_t series, int64_t absent, const TimeRun& run, bool too_long) const;

  const SeriesReaderOptions& options_;
  const std::vector<std::string>& files_;
  std::deque<std::string> ids_;  // the map's keys point into these
  std::unordered_map<std::string_view, uint32_t> by_id_;
  std::vector<SeriesState> states_;
  std::vector<TimeRun> runs_;
  std::vector<float> values_;
  uint32_t last_series_ = UINT32_MAX;
  bool interleaved_ = false;
  bool untimed_ = false;  // at least one point has no time
  bool in_steps_ = false;
  bool numbered_ = false;  // times are not used: points are numbered
  std::optional<TimeStyle> style_;
  std::optional<Frequency> declared_frequency_;
  GapCount gaps_;
  Frequency frequency_;
};

}  // namespace brim::rows
