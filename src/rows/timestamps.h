// SPDX-License-Identifier: Apache-2.0
// Times of series as files write them (ISO 8601, or whole numbers) and the frequency they come at. A time is a number:
// microseconds of civil time since 1970, or the integer itself; the style says how to write it again. A frequency lays
// a grid over time whose steps have numbers that all series share: hours, business days and months alike.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace brim::rows {

// How a time is written. Civil time is kept as it stands: all times of a run must have the same zone, or none.
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

// 2016, 20160701 (a date where it can be one), 2016-07, 2016Q3, 2016-07-01, 2016/07/01, 2016-07-01 13:00[:00[.5]][Z].
std::optional<Timestamp> parse_timestamp(std::string_view text);
std::string format_time(int64_t value, const TimeStyle& style);
std::string zone_name(const TimeStyle& style);  // "+01:00", "Z", "none"

struct Frequency {
  enum class Unit : uint8_t {
    index,         // whole numbers, `count` apart
    fixed,         // `count` microseconds
    business_day,  // Monday to Friday
    month,         // `count` months: 1, 3 a quarter, 12 a year
  };
  Unit unit = Unit::index;
  int64_t count = 1;
  bool operator==(const Frequency&) const = default;
};

// "H", "15min", "B", "W", "M", "MS", "Q", "Y", "index", … as pandas has them; what follows a dash (W-SUN) is dropped.
std::optional<Frequency> parse_frequency(std::string_view text);
std::string frequency_name(const Frequency& frequency);
std::string frequency_words(const Frequency& frequency);  // "hourly", "every 15 minutes"

// Steps after which the pattern returns, as the M4 competition counts them: 24 hourly, 12 monthly, 4 quarterly, 1 for
// days, weeks and years; of parts of an hour as many as a day has.
int64_t season_of(const Frequency& frequency);

// The number of the step that a time lies in.
int64_t step_number(const Frequency& frequency, int64_t time);
// The time `steps` steps after one. The last day of a month stays the last.
int64_t time_after(const Frequency& frequency, int64_t time, int64_t steps);
// Whether `time` is where a series that began at `first` can have a point.
bool on_grid(const Frequency& frequency, int64_t first, int64_t time);
bool is_weekend(int64_t time);

// The commonest gap between successive points.
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
