// SPDX-License-Identifier: Apache-2.0
// Market calendar and ladder schedules. New York Stock Exchange sessions follow from its rules; exceptions (such as
// days of mourning) are read from a file. All functions take the time as an argument; none reads a clock.
#pragma once
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/time_zone.h"

namespace brim::serve {

enum class Market : uint8_t { closed, extended, open };
const char* market_name(Market market);
std::optional<Market> market_of(std::string_view name);

using Date = std::chrono::sys_days;  // local date

// Sessions of a day, in minutes after midnight.
struct MarketDay {
  bool trades = false;
  int early = 4 * 60, open = 9 * 60 + 30, close = 16 * 60, late = 20 * 60;
  Market at(int minute) const;
};

class MarketCalendar {
 public:
  // The exchange's rules since 2022, when Juneteenth became a holiday.
  static MarketCalendar nyse();
  // Exceptions to the rules, one per line: `2025-01-09 closed`, `2026-12-31 close 13:00`, `2027-01-01 open` (a regular
  // trading day); # starts a comment. Throws usage with `where` and line.
  void read_exceptions(std::string_view text, const std::string& where);

  MarketDay day(Date date) const;

 private:
  std::map<Date, MarketDay> exceptions_;
};

// A daily time span on some weekdays. If `to` <= `from`, the span continues past midnight.
struct TimedRung {
  uint8_t weekdays = 0;  // bit 0: Sunday
  int from = 0, to = 0;  // minutes after midnight; `to` up to 24:00
  std::string rung;
};
// Parses "mon-fri", "sat,sun", "daily", "fri-mon"; empty if invalid.
std::optional<uint8_t> weekdays_of(std::string_view text);
std::optional<int> minute_of_day(std::string_view text);  // "09:30", "24:00"

// Rungs by market session; an empty rung means that the schedule does not select one.
struct MarketRungs {
  MarketCalendar calendar;
  std::string open, extended, closed;
};

class Schedule {
 public:
  Schedule(TimeZone zone, MarketRungs rungs);
  // The first matching span wins.
  Schedule(TimeZone zone, std::vector<TimedRung> times);
  // Overrides the clock.
  void fix_market(Market market) { fixed_ = market; }

  std::string rung_at(int64_t unix_seconds) const;                 // empty: no rung is scheduled
  std::optional<Market> market_at(int64_t unix_seconds) const;     // empty without a market calendar
  std::optional<int64_t> next_change(int64_t unix_seconds) const;  // next time the rung changes, within about a year
  std::vector<std::string> rungs() const;                          // all rungs in the schedule
  const TimeZone& zone() const { return zone_; }

 private:
  const std::string& rung_of(Market market) const;
  std::vector<LocalSeconds> boundaries(Date date) const;

  TimeZone zone_;
  std::optional<MarketRungs> market_;
  std::vector<TimedRung> times_;
  std::optional<Market> fixed_;
};

}  // namespace brim::serve
