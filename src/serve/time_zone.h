// SPDX-License-Identifier: Apache-2.0
// Local time in a zone of the system's tzdata (RFC 8536 files, versions 1 to 4, with the footer's rule for the years
// after the last listed change). Ignores leap seconds, as Unix time does.
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace brim::serve {

// Seconds of local time, counted as if the zone were UTC.
using LocalSeconds = int64_t;

class TimeZone {
 public:
  // Loads a zone such as "America/New_York" or "UTC". Throws usage for an unknown name, bad_data for an invalid file.
  static TimeZone load(const std::string& name, const std::filesystem::path& folder = "/usr/share/zoneinfo");
  // Parses the bytes of a zone file; `name` is for messages. Throws bad_data.
  static TimeZone parse(std::string_view bytes, const std::string& name);

  const std::string& name() const { return name_; }
  int64_t offset_at(int64_t unix_seconds) const;  // seconds east of Greenwich
  LocalSeconds local(int64_t unix_seconds) const { return unix_seconds + offset_at(unix_seconds); }
  // First time after `unix_seconds` with a different offset; empty if none.
  std::optional<int64_t> next_change(int64_t unix_seconds) const;
  // All times at which clocks show `local`: usually one, two in a repeated hour, none in a skipped hour.
  std::vector<int64_t> moments_of(LocalSeconds local) const;

 private:
  // Day of a year and second of that day at which clocks change. Days are counted from 0.
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
  std::optional<Rule> rule_;     // after the last change
};

}  // namespace brim::serve
