// SPDX-License-Identifier: Apache-2.0
// Parses times of series (ISO 8601, or integers) and detects their frequency. A time is a number: microseconds of civil
// time since 1970, or the integer itself; the style records how to format it. A frequency defines a grid over time with
// step numbers shared by all series, for hours, business days and months alike.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace brim::rows {

// Format of a time. Civil time is not converted: all times of a run must have the same zone, or none.
struct TimeStyle {
  enum class Kind : uint8_t { integer, quarter, month, day, minute, second, fraction };
  Kind kind = Kind::integer;
  char date_separator = '-';    // '-', '/', or 0: 20160701
  char time_separator = ' ';    // ' ' or 'T'
  std::optional<int16_t> zone;  // minutes east of UTC
  bool zulu = false;            // the zone is written as Z
  bool operator==(const TimeStyle&) const = default;
};

struct Timestamp {
  int64_t value = 0;
  TimeStyle style;
  bool is_integer() const { return style.kind == TimeStyle::Kind::integer; }
};

// 2016, 20160701 (a date if valid as one), 2016-07, 2016Q3, 2016-07-01, 2016/07/01, 2016-07-01 13:00[:00[.5]][Z].
std::optional<Timestamp> parse_timestamp(std::string_view text);
std::string format_time(int64_t value, const TimeStyle& style);
std::string zone_name(const TimeStyle& style);  // "+01:00", "Z", "none"

struct Frequency {
  enum class Unit : uint8_t {
    index,         // integers, `count` apart
    fixed,         // `count` microseconds
    business_day,  // Monday to Friday
    month,         // `count` months: 1, 3 a quarter, 12 a year
  };
  Unit unit = Unit::index;
  int64_t count = 1;
  bool operator==(const Frequency&) const = default;
};

// "H", "15min", "B", "W", "M", "MS", "Q", "Y", "index", … as in pandas; a suffix after a dash (W-SUN) is dropped.
std::optional<Frequency> parse_frequency(std::string_view text);
std::string frequency_name(const Frequency& frequency);
std::string frequency_words(const Frequency& frequency);  // "hourly", "every 15 minutes"

// Season length in steps, as in the M4 competition: 24 for hourly, 12 monthly, 4 quarterly, 1 for days, weeks and
// years; for fractions of an hour, the number per day.
int64_t season_of(const Frequency& frequency);

// Number of the step that contains a time.
int64_t step_number(const Frequency& frequency, int64_t time);
// Time `steps` steps later. The last day of a month stays the last.
int64_t time_after(const Frequency& frequency, int64_t time, int64_t steps);
// Whether a series that began at `first` can have a point at `time`.
bool on_grid(const Frequency& frequency, int64_t first, int64_t time);
bool is_weekend(int64_t time);

// Finds the most frequent gap between successive points.
class GapCount {
 public:
  void add(int64_t gap, int64_t times);
  void saw_weekend() { weekend_ = true; }
  Frequency frequency(bool integers) const;

 private:
  std::map<int64_t, int64_t> times_;
  bool weekend_ = false;
};

}  // namespace brim::rows
