// SPDX-License-Identifier: Apache-2.0
// Civil time in a zone of the system's tzdata (RFC 8536 files, versions 1 to 4, with the rule in their footer for the
// years after the last listed change). Leap seconds are not counted, as everywhere on Unix.
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace brim::serve {

// Seconds of civil time, counted as if the zone were UTC: what a clock on the wall shows.
using LocalSeconds = int64_t;

class TimeZone {
 public:
  // "America/New_York", "UTC". Throws usage for a name that tzdata does not have, bad_data for a file that is none.
  static TimeZone load(const std::string& name, const std::filesystem::path& folder = "/usr/share/zoneinfo");
  // The bytes of such a file; `name` is for messages. Throws bad_data.
  static TimeZone parse(std::string_view bytes, const std::string& name);

  const std::string& name() const { return name_; }
  int64_t offset_at(int64_t unix_seconds) const;  // seconds east of Greenwich
  LocalSeconds local(int64_t unix_seconds) const { return unix_seconds + offset_at(unix_seconds); }
  // The first moment after `unix_seconds` with another offset; empty: none.
  std::optional<int64_t> next_change(int64_t unix_seconds) const;
  // Every moment at which clocks show `local`: one, two in the hour that comes twice, none in the hour that is left
  // out.
  std::vector<int64_t> moments_of(LocalSeconds local) const;

 private:
  // When in a year, and at what second of that day, clocks change. Days are counted from 0.
  struct YearDay {
    enum class Kind : uint8_t { julian_without_leap, day_of_year, weekday_of_month } kind = Kind::day_of_year;
    int day = 0, month = 0, week = 0;
    int64_t seconds = 2 * 3600;
    LocalSeconds in(int year) const;
  };
  struct Rule {
    int64_t standard = 0, daylight = 0;
    bool has_daylight = false;
    YearDay begins, ends;
  };
  struct Change {
    int64_t at = 0;
    int64_t offset = 0;
  };
  class RuleReader;

  int64_t listed_offset(int64_t unix_seconds) const;
  std::array<Change, 2> rule_changes(int year) const;

  std::string name_;
  int64_t first_offset_ = 0;     // before the first change
  std::vector<Change> changes_;  // by time
  std::optional<Rule> rule_;     // after the last one
};

}  // namespace brim::serve
