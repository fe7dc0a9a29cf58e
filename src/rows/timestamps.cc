// SPDX-License-Identifier: Apache-2.0
#include "rows/timestamps.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace brim::rows {
namespace {

using Kind = TimeStyle::Kind;
using Unit = Frequency::Unit;

constexpr int64_t kSecondUs = 1'000'000, kMinuteUs = 60 * kSecondUs, kHourUs = 60 * kMinuteUs, kDayUs = 24 * kHourUs;
constexpr size_t kMostGaps = 4096;  // limit on distinct gaps counted; a grid has few

int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }
int64_t floor_mod(int64_t a, int64_t b) { return a - floor_div(a, b) * b; }

int64_t day_number(int64_t time) { return floor_div(time, kDayUs); }
// Monday is 0; day 0, the first of 1970, was a Thursday.
int64_t weekday(int64_t day) { return floor_mod(day + 3, 7); }

// std::chrono's years end at 32767, which a long horizon of years can exceed.
struct Date {
  int64_t year, month, day;
};

// Converts between days and Gregorian dates using eras of 400 years that begin in March, so that leap days come last.
constexpr int64_t kEraDays = 146'097, kEpochDay = 719'468;

Date civil(int64_t day) {
  day += kEpochDay;
  const int64_t era = floor_div(day, kEraDays), in_era = day - era * kEraDays;
  const int64_t year = (in_era - in_era / 1460 + in_era / 36'524 - in_era / 146'096) / 365;
  const int64_t in_year = in_era - (365 * year + year / 4 - year / 100);
  const int64_t month = (5 * in_year + 2) / 153;
  const int64_t of_month = in_year - (153 * month + 2) / 5 + 1;
  return {year + era * 400 + (month >= 10), month < 10 ? month + 3 : month - 9, of_month};
}

int64_t day_of(const Date& date) {
  const int64_t year = date.year - (date.month <= 2);
  const int64_t era = floor_div(year, 400), in_era = year - era * 400;
  const int64_t in_year = (153 * (date.month + (date.month > 2 ? -3 : 9)) + 2) / 5 + date.day - 1;
  return era * kEraDays + in_era * 365 + in_era / 4 - in_era / 100 + in_year - kEpochDay;
}

int64_t month_number(const Date& date) { return (date.year - 1970) * 12 + date.month - 1; }
// First day of a month given by its number.
Date month_of(int64_t number) { return {1970 + floor_div(number, 12), floor_mod(number, 12) + 1, 1}; }
int64_t days_in(const Date& date) {
  return day_of(month_of(month_number(date) + 1)) - day_of({date.year, date.month, 1});
}

// Parses text from the front.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : text_(text) {}
  bool done() const { return text_.empty(); }
  bool take(char c) {
    if (!text_.starts_with(c)) return false;
    text_.remove_prefix(1);
    return true;
  }
  // Exactly `digits` digits.
  bool number(size_t digits, int& out) {
    if (text_.size() < digits) return false;
    out = 0;
    for (size_t i = 0; i < digits; ++i) {
      if (text_[i] < '0' || text_[i] > '9') return false;
      out = out * 10 + (text_[i] - '0');
    }
    text_.remove_prefix(digits);
    return true;
  }
  // Digits after the decimal point, as microseconds. Smaller digits must be zero.
  bool fraction(int64_t& us) {
    us = 0;
    size_t n = 0;
    for (; n < text_.size() && text_[n] >= '0' && text_[n] <= '9'; ++n) {
      if (n < 6)
        us = us * 10 + (text_[n] - '0');
      else if (text_[n] != '0')
        return false;
    }
    for (size_t i = n; i < 6; ++i) us *= 10;
    text_.remove_prefix(n);
    return n > 0;
  }

 private:
  std::string_view text_;
};

// Four-digit years keep every sum of times within 64 bits.
std::optional<int64_t> date_us(int year, int month, int day) {
  const Date date{year, month, day};
  if (month < 1 || month > 12 || day < 1 || day > days_in(date)) return std::nullopt;
  return day_of(date) * kDayUs;
}

bool take_zone(Cursor& at, TimeStyle& style) {
  if (at.done()) return true;
  if (at.take('Z') || at.take('z')) {
    style.zone = 0;
    style.zulu = true;
    return true;
  }
  const bool west = at.take('-');
  int hours = 0, minutes = 0;
  if (!west && !at.take('+')) return false;
  if (!at.number(2, hours)) return false;
  at.take(':');
  if (!at.done() && !at.number(2, minutes)) return false;
  if (hours > 23 || minutes > 59) return false;
  style.zone = static_cast<int16_t>((west ? -1 : 1) * (hours * 60 + minutes));
  return true;
}

std::optional<Timestamp> parse_integer(std::string_view text) {
  Timestamp out;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out.value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  constexpr int64_t kLargest = int64_t{1} << 53;  // differences and steps ahead stay within 64 bits
  if (out.value > kLargest || out.value < -kLargest) return std::nullopt;
  int year = 0, month = 0, day = 0;
  Cursor at(text);
  if (text.size() == 8 && at.number(4, year) && at.number(2, month) && at.number(2, day) && year >= 1800 && year < 2200)
    if (const auto us = date_us(year, month, day)) {
      out.value = *us;
      out.style.kind = Kind::day;
      out.style.date_separator = 0;
    }
  return out;
}

}  // namespace

std::optional<Timestamp> parse_timestamp(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  if (text.empty() || text.size() > 40) return std::nullopt;
  if (text.find_first_not_of("0123456789", text[0] == '-' ? 1 : 0) == std::string_view::npos)
    return parse_integer(text);
  Timestamp out;
  Cursor at(text);
  int year = 0, month = 0, day = 1;
  if (!at.number(4, year)) return std::nullopt;
  const bool slash = at.take('/');
  const bool dash = !slash && at.take('-');
  if (slash) out.style.date_separator = '/';
  if (!slash && (at.take('Q') || at.take('q'))) {
    int quarter = 0;
    if (!at.number(1, quarter) || !at.done() || quarter < 1 || quarter > 4) return std::nullopt;
    out.style.kind = Kind::quarter;
    out.style.date_separator = dash ? '-' : 0;
    out.value = *date_us(year, quarter * 3 - 2, 1);
    return out;
  }
  if (!slash && !dash) return std::nullopt;
  if (!at.number(2, month)) return std::nullopt;
  out.style.kind = Kind::month;
  if (at.take(slash ? '/' : '-')) {
    if (!at.number(2, day)) return std::nullopt;
    out.style.kind = Kind::day;
  }
  const auto us = date_us(year, month, day);
  if (!us) return std::nullopt;
  out.value = *us;
  if (at.done()) return out;
  if (out.style.kind != Kind::day) return std::nullopt;
  if (at.take('T'))
    out.style.time_separator = 'T';
  else if (!at.take(' '))
    return std::nullopt;
  int hour = 0, minute = 0, second = 0;
  int64_t fraction = 0;
  if (!at.number(2, hour) || !at.take(':') || !at.number(2, minute)) return std::nullopt;
  out.style.kind = Kind::minute;
  if (at.take(':')) {
    if (!at.number(2, second)) return std::nullopt;
    out.style.kind = Kind::second;
    if (at.take('.')) {
      if (!at.fraction(fraction)) return std::nullopt;
      out.style.kind = Kind::fraction;
    }
  }
  if (hour > 23 || minute > 59 || second > 59) return std::nullopt;
  at.take(' ');
  if (!take_zone(at, out.style) || !at.done()) return std::nullopt;
  out.value += hour * kHourUs + minute * kMinuteUs + second * kSecondUs + fraction;
  return out;
}

std::string zone_name(const TimeStyle& style) {
  if (!style.zone) return "none";
  if (style.zulu) return "Z";
  const int minutes = *style.zone < 0 ? -*style.zone : *style.zone;
  return fmt::format("{}{:02}:{:02}", *style.zone < 0 ? '-' : '+', minutes / 60, minutes % 60);
}

std::string format_time(int64_t value, const TimeStyle& style) {
  if (style.kind == Kind::integer) return fmt::format("{}", value);
  const int64_t day = day_number(value);
  const Date date = civil(day);
  const std::string separator = style.date_separator == 0 ? "" : std::string(1, style.date_separator);
  if (style.kind == Kind::quarter) return fmt::format("{:04}{}Q{}", date.year, separator, (date.month + 2) / 3);
  std::string out = fmt::format("{:04}{}{:02}", date.year, separator, date.month);
  if (style.kind == Kind::month) return out;
  out += fmt::format("{}{:02}", separator, date.day);
  const int64_t us = value - day * kDayUs;
  if (style.kind == Kind::day && us == 0) return out;
  out += fmt::format("{}{:02}:{:02}", style.time_separator, us / kHourUs, us / kMinuteUs % 60);
  if (style.kind != Kind::minute || us % kMinuteUs != 0) out += fmt::format(":{:02}", us / kSecondUs % 60);
  if (style.kind == Kind::fraction || us % kSecondUs != 0) out += fmt::format(".{:06}", us % kSecondUs);
  return style.zone ? out + zone_name(style) : out;
}

std::optional<Frequency> parse_frequency(std::string_view text) {
  text = text.substr(0, text.find('-'));
  int64_t count = 1;
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  if (digits > 0) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + digits, count);
    if (error != std::errc() || count < 1 || count > 100'000) return std::nullopt;
  }
  const std::string_view unit = text.substr(digits);
  struct Name {
    std::string_view name;
    Unit unit;
    int64_t count;
  };
  // As in pandas; S, H and T in either case, but M is a month and min a minute.
  static constexpr Name kNames[] = {
      {"index", Unit::index, 1},       {"s", Unit::fixed, kSecondUs}, {"S", Unit::fixed, kSecondUs},
      {"min", Unit::fixed, kMinuteUs}, {"T", Unit::fixed, kMinuteUs}, {"h", Unit::fixed, kHourUs},
      {"H", Unit::fixed, kHourUs},     {"D", Unit::fixed, kDayUs},    {"d", Unit::fixed, kDayUs},
      {"W", Unit::fixed, 7 * kDayUs},  {"B", Unit::business_day, 1},  {"M", Unit::month, 1},
      {"MS", Unit::month, 1},          {"ME", Unit::month, 1},        {"Q", Unit::month, 3},
      {"QS", Unit::month, 3},          {"QE", Unit::month, 3},        {"Y", Unit::month, 12},
      {"YS", Unit::month, 12},         {"YE", Unit::month, 12},       {"A", Unit::month, 12},
      {"AS", Unit::month, 12},
  };
  for (const Name& name : kNames) {
    if (name.name != unit) continue;
    if (count > 1 && name.unit == Unit::business_day) return std::nullopt;
    const Frequency frequency{name.unit, name.count * count};
    // 64-bit microseconds cover 292,000 years; steps of up to a millennium keep time_after far below that.
    const int64_t most = name.unit == Unit::month   ? 12 * 1000
                         : name.unit == Unit::fixed ? 365 * 1000 * kDayUs
                                                    : frequency.count;
    if (frequency.count > most) return std::nullopt;
    return frequency;
  }
  return std::nullopt;
}

std::string frequency_name(const Frequency& f) {
  const auto times = [&](int64_t unit, const char* name) {
    const int64_t n = f.count / unit;
    return n == 1 ? std::string(name) : fmt::format("{}{}", n, name);
  };
  switch (f.unit) {
    case Unit::index:
      return times(1, "index");
    case Unit::business_day:
      return "B";
    case Unit::month:
      return f.count % 12 == 0 ? times(12, "Y") : f.count % 3 == 0 ? times(3, "Q") : times(1, "M");
    case Unit::fixed:
      for (const auto& [unit, name] : {std::pair(7 * kDayUs, "W"), std::pair(kDayUs, "D"), std::pair(kHourUs, "H"),
                                       std::pair(kMinuteUs, "min"), std::pair(kSecondUs, "s")})
        if (f.count % unit == 0) return times(unit, name);
      return fmt::format("{}us", f.count);
  }
  return "index";
}

std::string frequency_words(const Frequency& f) {
  const auto every = [&](int64_t unit, const char* one, const char* several) {
    const int64_t n = f.count / unit;
    return n == 1 ? std::string(one) : fmt::format("every {} {}", n, several);
  };
  switch (f.unit) {
    case Unit::index:
      return f.count == 1 ? "numbered points" : fmt::format("numbers {} apart", f.count);
    case Unit::business_day:
      return "business days";
    case Unit::month:
      return f.count % 12 == 0  ? every(12, "yearly", "years")
             : f.count % 3 == 0 ? every(3, "quarterly", "quarters")
                                : every(1, "monthly", "months");
    case Unit::fixed:
      if (f.count % (7 * kDayUs) == 0) return every(7 * kDayUs, "weekly", "weeks");
      if (f.count % kDayUs == 0) return every(kDayUs, "daily", "days");
      if (f.count % kHourUs == 0) return every(kHourUs, "hourly", "hours");
      if (f.count % kMinuteUs == 0) return every(kMinuteUs, "every minute", "minutes");
      if (f.count % kSecondUs == 0) return every(kSecondUs, "every second", "seconds");
      return fmt::format("every {} microseconds", f.count);
  }
  return "";
}

int64_t season_of(const Frequency& f) {
  if (f.unit == Unit::month) return f.count < 12 && 12 % f.count == 0 ? 12 / f.count : 1;
  if (f.unit == Unit::fixed && f.count < kDayUs && kDayUs % f.count == 0) return kDayUs / f.count;
  return 1;
}

int64_t step_number(const Frequency& f, int64_t time) {
  switch (f.unit) {
    case Unit::business_day: {
      const int64_t day = day_number(time);
      return floor_div(day + 3, 7) * 5 + std::min<int64_t>(weekday(day), 4);
    }
    case Unit::month:
      return floor_div(month_number(civil(day_number(time))), f.count);
    default:
      return floor_div(time, f.count);
  }
}

int64_t time_after(const Frequency& f, int64_t time, int64_t steps) {
  const int64_t day = day_number(time);
  switch (f.unit) {
    case Unit::business_day: {
      const int64_t number = step_number(f, time) + steps;
      return (floor_div(number, 5) * 7 + floor_mod(number, 5) - 3) * kDayUs + (time - day * kDayUs);
    }
    case Unit::month: {
      const Date date = civil(day);
      Date then = month_of(month_number(date) + steps * f.count);
      const int64_t last = days_in(then);
      then.day = date.day == days_in(date) ? last : std::min(date.day, last);
      return day_of(then) * kDayUs + (time - day * kDayUs);
    }
    default:
      return time + steps * f.count;
  }
}

bool is_weekend(int64_t time) { return weekday(day_number(time)) > 4; }

bool on_grid(const Frequency& f, int64_t first, int64_t time) {
  switch (f.unit) {
    case Unit::business_day:
      return !is_weekend(time) && (time - first) % kDayUs == 0;
    case Unit::month:  // ends of months, first Mondays: one point per month, on any day
      return true;
    default:
      return (time - first) % f.count == 0;
  }
}

void GapCount::add(int64_t gap, int64_t times) {
  const auto found = times_.find(gap);
  if (found != times_.end())
    found->second += times;
  else if (times_.size() < kMostGaps)
    times_.emplace(gap, times);
}

Frequency GapCount::frequency(bool integers) const {
  if (times_.empty()) return {integers ? Unit::index : Unit::fixed, integers ? 1 : kDayUs};
  const auto commonest =
      std::max_element(times_.begin(), times_.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  const int64_t gap = commonest->first;
  if (integers) return {Unit::index, gap};
  if (gap == kDayUs && !weekend_ && times_.contains(3 * kDayUs)) return {Unit::business_day, 1};
  int64_t all = 0;
  for (const auto& [unused, times] : times_) all += times;
  const bool always = 2 * commonest->second > all;  // 28-day months are one in twelve
  const auto days = [&](int64_t fewest, int64_t most) { return gap >= fewest * kDayUs && gap <= most * kDayUs; };
  if (days(28, 31) && gap % kDayUs == 0 && !(gap == 28 * kDayUs && always && all > 2)) return {Unit::month, 1};
  if (days(89, 92) && gap % kDayUs == 0) return {Unit::month, 3};
  if (days(181, 184) && gap % kDayUs == 0) return {Unit::month, 6};
  if (days(365, 366) && gap % kDayUs == 0) return {Unit::month, 12};
  return {Unit::fixed, gap};
}

}  // namespace brim::rows
