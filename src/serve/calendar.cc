// SPDX-License-Identifier: Apache-2.0
#include "serve/calendar.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "base/error.h"
#include "base/units.h"

namespace brim::serve {
namespace {

namespace chr = std::chrono;
using chr::Friday;
using chr::January, chr::February, chr::May, chr::June, chr::July, chr::September, chr::November, chr::December;
using chr::Monday, chr::Saturday, chr::Sunday, chr::Thursday;

constexpr int kMinutesPerDay = 24 * 60;
constexpr int64_t kDaySeconds = 86400;
constexpr int kDaysAhead = 400;

Date date_of_local(LocalSeconds local) { return chr::floor<chr::days>(chr::sys_seconds(chr::seconds(local))); }

int minute_of_local(LocalSeconds local) {
  return static_cast<int>((local - chr::sys_seconds(date_of_local(local)).time_since_epoch().count()) / 60);
}

LocalSeconds local_of(Date date, int minute) {
  return chr::sys_seconds(date).time_since_epoch().count() + int64_t{60} * minute;
}

// Date of Easter Sunday in the Gregorian calendar, by the ecclesiastical computus.
Date easter(chr::year year) {
  const int y = static_cast<int>(year);
  const int golden = y % 19, century = y / 100;
  const int moon = (19 * golden + century - century / 4 - (century - (century + 8) / 25 + 1) / 3 + 15) % 30;
  const int sunday = (32 + 2 * (century % 4) + 2 * (y % 100 / 4) - moon - y % 100 % 4) % 7;
  const int late = (golden + 11 * moon + 22 * sunday) / 451;
  return Date(year / chr::March / 22) + chr::days(moon + sunday - 7 * late);
}

bool weekend(Date date) {
  const chr::weekday day(date);
  return day == Saturday || day == Sunday;
}

// Observed date of a fixed-date holiday: Friday for Saturday, Monday for Sunday.
Date observed_on(Date date) {
  const chr::weekday day(date);
  return day == Saturday ? date - chr::days(1) : day == Sunday ? date + chr::days(1) : date;
}

bool nyse_holiday(Date date) {
  const chr::year year = chr::year_month_day(date).year();
  // A New Year's Day on a Saturday is not observed: the exchange does not close on the last business day of a year.
  const Date new_year(year / January / 1);
  if (date == new_year || (date == observed_on(new_year) && chr::weekday(new_year) == Sunday)) return true;
  const std::array<Date, 9> others = {Date(year / January / Monday[3]),
                                      Date(year / February / Monday[3]),
                                      easter(year) - chr::days(2),
                                      Date(year / May / Monday[chr::last]),
                                      observed_on(Date(year / June / 19)),
                                      observed_on(Date(year / July / 4)),
                                      Date(year / September / Monday[1]),
                                      Date(year / November / Thursday[4]),
                                      observed_on(Date(year / December / 25))};
  return std::find(others.begin(), others.end(), date) != others.end();
}

// Trading ends at 13:00 on July 3, December 24 and the day after Thanksgiving.
bool nyse_early_close(Date date) {
  const chr::year year = chr::year_month_day(date).year();
  return date == Date(year / July / 3) || date == Date(year / December / 24) ||
         date == Date(year / November / Thursday[4]) + chr::days(1);
}

void close_early(MarketDay& day, int close) {
  day.close = close;
  day.late = std::min(day.late, close + 4 * 60);  // late trading always lasts four hours
}

std::optional<Date> read_date(std::string_view text) {
  int part[3] = {};
  const char* at = text.data();
  const char* end = at + text.size();
  if (text.size() != 10 || text[4] != '-' || text[7] != '-') return std::nullopt;
  for (int i = 0; i < 3; ++i) {
    const char* stop = at + (i == 0 ? 4 : 2);
    const auto [next, error] = std::from_chars(at, stop, part[i]);
    if (error != std::errc() || next != stop || part[i] < 0) return std::nullopt;
    at = std::min(next + 1, end);
  }
  const chr::year_month_day date{chr::year(part[0]), chr::month(static_cast<unsigned>(part[1])),
                                 chr::day(static_cast<unsigned>(part[2]))};
  return date.ok() ? std::optional<Date>(date) : std::nullopt;
}

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  for (size_t pos = 0; pos < line.size();) {
    const size_t first = line.find_first_not_of(" \t\r", pos);
    if (first == std::string_view::npos || line[first] == '#') break;
    pos = std::min(line.find_first_of(" \t\r", first), line.size());
    words.push_back(line.substr(first, pos - first));
  }
  return words;
}

}  // namespace

const char* market_name(Market market) {
  return market == Market::open ? "open" : market == Market::extended ? "extended" : "closed";
}

std::optional<Market> market_of(std::string_view name) {
  for (const Market market : {Market::closed, Market::extended, Market::open})
    if (same_word(name, market_name(market))) return market;
  return std::nullopt;
}

Market MarketDay::at(int minute) const {
  if (!trades || minute < early || minute >= late) return Market::closed;
  return minute >= open && minute < close ? Market::open : Market::extended;
}

MarketCalendar MarketCalendar::nyse() { return {}; }

void MarketCalendar::read_exceptions(std::string_view text, const std::string& where) {
  for (int line = 1; !text.empty(); ++line) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::vector<std::string_view> words = words_of(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (words.empty()) continue;
    const std::optional<Date> date = read_date(words[0]);
    if (!date) fail(ErrorCode::usage, "{}:{}: invalid date {} (use YYYY-MM-DD)", where, line, words[0]);
    MarketDay day;
    const std::string_view kind = words.size() > 1 ? words[1] : "";
    const int close = words.size() == 3 ? minute_of_day(words[2]).value_or(0) : 0;
    if (words.size() == 2 && kind == "open") {
      day.trades = true;
    } else if (kind == "close" && close > day.open && close <= day.late) {
      day.trades = true;
      close_early(day, close);
    } else if (words.size() != 2 || kind != "closed") {
      fail(ErrorCode::usage, "{}:{}: expected `closed`, `open` or `close 13:00` after the date", where, line);
    }
    exceptions_[*date] = day;
  }
}

MarketDay MarketCalendar::day(Date date) const {
  if (const auto found = exceptions_.find(date); found != exceptions_.end()) return found->second;
  MarketDay day;
  day.trades = !weekend(date) && !nyse_holiday(date);
  if (day.trades && nyse_early_close(date)) close_early(day, 13 * 60);
  return day;
}

std::optional<uint8_t> weekdays_of(std::string_view text) {
  static constexpr const char* kNames[] = {"sun", "mon", "tue", "wed", "thu", "fri", "sat"};
  const auto day = [](std::string_view name) -> std::optional<int> {
    for (int i = 0; i < 7; ++i)
      if (same_word(name, kNames[i])) return i;
    return std::nullopt;
  };
  if (same_word(text, "daily")) return 0x7F;
  uint8_t all = 0;
  while (true) {
    const size_t end = std::min(text.find(','), text.size());
    const std::string_view part = text.substr(0, end);
    const size_t dash = part.find('-');
    const auto first = day(part.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : day(part.substr(dash + 1));
    if (!first || !last) return std::nullopt;
    for (int i = *first;; i = (i + 1) % 7) {
      all = static_cast<uint8_t>(all | 1 << i);
      if (i == *last) break;
    }
    if (end == text.size()) return all;
    text.remove_prefix(end + 1);
    while (text.starts_with(' ')) text.remove_prefix(1);
  }
}

std::optional<int> minute_of_day(std::string_view text) {
  const auto digit = [&](size_t i) { return text[i] >= '0' && text[i] <= '9' ? text[i] - '0' : 100; };
  if (text.size() != 5 || text[2] != ':') return std::nullopt;
  const int hour = digit(0) * 10 + digit(1), minute = digit(3) * 10 + digit(4);
  if (minute > 59 || hour > 24 || (hour == 24 && minute > 0)) return std::nullopt;
  return hour * 60 + minute;
}

Schedule::Schedule(TimeZone zone, MarketRungs rungs) : zone_(std::move(zone)), market_(std::move(rungs)) {}
Schedule::Schedule(TimeZone zone, std::vector<TimedRung> times) : zone_(std::move(zone)), times_(std::move(times)) {}

const std::string& Schedule::rung_of(Market market) const {
  return market == Market::open ? market_->open : market == Market::extended ? market_->extended : market_->closed;
}

std::vector<std::string> Schedule::rungs() const {
  std::vector<std::string> all;
  if (market_) all = {market_->open, market_->extended, market_->closed};
  for (const TimedRung& span : times_) all.push_back(span.rung);
  std::erase(all, "");
  return all;
}

std::optional<Market> Schedule::market_at(int64_t unix_seconds) const {
  if (!market_) return std::nullopt;
  if (fixed_) return fixed_;
  const LocalSeconds local = zone_.local(unix_seconds);
  return market_->calendar.day(date_of_local(local)).at(minute_of_local(local));
}

std::string Schedule::rung_at(int64_t unix_seconds) const {
  if (market_) return rung_of(*market_at(unix_seconds));
  const LocalSeconds local = zone_.local(unix_seconds);
  const Date date = date_of_local(local);
  const int minute = minute_of_local(local);
  const auto falls_on = [](const TimedRung& span, Date day) {
    return (span.weekdays >> chr::weekday(day).c_encoding() & 1) != 0;
  };
  for (const TimedRung& span : times_) {
    const bool past_midnight = span.to <= span.from;
    if (falls_on(span, date) && minute >= span.from && (past_midnight || minute < span.to)) return span.rung;
    if (past_midnight && falls_on(span, date - chr::days(1)) && minute < span.to) return span.rung;
  }
  return {};
}

std::vector<LocalSeconds> Schedule::boundaries(Date date) const {
  std::vector<LocalSeconds> all = {local_of(date, 0)};
  if (market_) {
    const MarketDay day = market_->calendar.day(date);
    if (day.trades)
      for (const int minute : {day.early, day.open, day.close, day.late}) all.push_back(local_of(date, minute));
  }
  for (const TimedRung& span : times_)
    for (const int minute : {span.from, span.to}) all.push_back(local_of(date, minute % kMinutesPerDay));
  return all;
}

std::optional<int64_t> Schedule::next_change(int64_t now) const {
  if (fixed_) return std::nullopt;
  const std::string rung = rung_at(now);
  const Date today = date_of_local(zone_.local(now));
  // Processes a few days at a time, so that moments are sorted even if clocks skip or repeat hours.
  constexpr int kStep = 4;
  for (int ahead = 0; ahead < kDaysAhead; ahead += kStep) {
    std::vector<int64_t> moments;
    for (int i = -1; i <= kStep; ++i)
      for (const LocalSeconds boundary : boundaries(today + chr::days(ahead + i)))
        for (const int64_t moment : zone_.moments_of(boundary)) moments.push_back(moment);
    const int64_t until = now + (ahead + kStep + 1) * kDaySeconds;
    for (auto jump = zone_.next_change(now + ahead * kDaySeconds); jump && *jump < until;
         jump = zone_.next_change(*jump))
      moments.push_back(*jump);  // a clock change may cross a boundary
    std::sort(moments.begin(), moments.end());
    for (const int64_t moment : moments)
      if (moment > now && rung_at(moment) != rung) return moment;
  }
  return std::nullopt;
}

}  // namespace brim::serve
