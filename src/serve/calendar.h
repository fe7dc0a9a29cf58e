// SPDX-License-Identifier: Apache-2.0
// When a market trades, and which rung of a ladder a schedule names at a moment. Sessions, holidays and early closes of
// the New York Stock Exchange follow from its rules; what no rule foresees (a day of mourning, a storm) comes from a
// file. Everything is a function of the moment it is asked about: there is no clock in here.
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

using Date = std::chrono::sys_days;  // of civil time

// A day's sessions, in minutes after midnight.
struct MarketDay {
  bool trades = false;
  int early = 4 * 60, open = 9 * 60 + 30, close = 16 * 60, late = 20 * 60;
  Market at(int minute) const;
};

class MarketCalendar {
 public:
  // By the exchange's rules as they are since 2022, the year of its first Juneteenth.
  static MarketCalendar nyse();
  // Days that differ from the rules, one on a line: `2025-01-09 closed`, `2026-12-31 close 13:00`, `2027-01-01 open`
  // (a usual day); # begins a comment. Throws usage with `where` and line.
  void read_exceptions(std::string_view text, const std::string& where);

  MarketDay day(Date date) const;

 private:
  std::map<Date, MarketDay> exceptions_;
};

// A span of some weekdays during which a rung is to answer. One that ends at or before its begin runs past midnight.
struct TimedRung {
  uint8_t weekdays = 0;  // bit 0: Sunday
  int from = 0, to = 0;  // minutes after midnight; `to` up to 24:00
  std::string rung;
};
// "mon-fri", "sat,sun", "daily", "fri-mon". Empty where it is none of these.
std::optional<uint8_t> weekdays_of(std::string_view text);
std::optional<int> minute_of_day(std::string_view text);  // "09:30", "24:00"

// What a market's hours name; an empty rung: the schedule says nothing then.
struct MarketRungs {
  MarketCalendar calendar;
  std::string open, extended, closed;
};

class Schedule {
 public:
  Schedule(TimeZone zone, MarketRungs rungs);
  // Where spans overlap, the first named is taken.
  Schedule(TimeZone zone, std::vector<TimedRung> times);
  // Whatever the clock says, for tests.
  void fix_market(Market market) { fixed_ = market; }

  std::string rung_at(int64_t unix_seconds) const;              // empty: the schedule says nothing
  std::optional<Market> market_at(int64_t unix_seconds) const;  // empty: it is not about a market
  std::optional<int64_t> next_change(
      int64_t unix_seconds) const;         // first later moment with another rung; within a year
  std::vector<std::string> rungs() const;  // those it names
  const TimeZone& zone() const { return zone_; }

 private:
  const std::string& rung_of(Market market) const;
  std::vector<LocalSeconds> borders(Date date) const;

  TimeZone zone_;
  std::optional<MarketRungs> market_;
  std::vector<TimedRung> times_;
  std::optional<Market> fixed_;
};

}  // namespace brim::serve
