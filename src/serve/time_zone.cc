// SPDX-License-Identifier: Apache-2.0
#include "serve/time_zone.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "base/error.h"

namespace brim::serve {
namespace {

namespace chr = std::chrono;

constexpr int64_t kDay = 86400;
constexpr int64_t kMaxOffset = 26 * 3600;       // RFC 8536: offsets are below 26 hours
constexpr int64_t kMaxTime = int64_t{1} << 35;  // seconds in both directions, about 1,000 years
constexpr size_t kMaxFile = size_t{1} << 20;

class ZoneBytes {
 public:
  ZoneBytes(std::string_view bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  [[noreturn]] void refuse(const char* what) const {
    fail(ErrorCode::bad_data, "{}: invalid zone file: {} at byte {}", name_, what, at_);
  }
  std::string_view take(size_t bytes) {
    if (bytes > bytes_.size() - at_) refuse("unexpected end");
    const std::string_view part = bytes_.substr(at_, bytes);
    at_ += bytes;
    return part;
  }
  int64_t number(size_t width) {
    uint64_t value = 0;
    for (const char c : take(width)) value = value << 8 | static_cast<uint8_t>(c);
    return width == 8 ? static_cast<int64_t>(value) : static_cast<int32_t>(static_cast<uint32_t>(value));
  }
  size_t count() { return static_cast<uint32_t>(number(4)); }
  std::string_view rest() const { return bytes_.substr(at_); }

 private:
  std::string_view bytes_;
  const std::string& name_;
  size_t at_ = 0;
};

struct ZoneHeader {
  char version = 0;
  size_t utc = 0, standard = 0, leaps = 0, times = 0, types = 0, letters = 0;
};

ZoneHeader read_header(ZoneBytes& in) {
  ZoneHeader h;
  if (in.take(4) != "TZif") in.refuse("missing TZif magic");
  h.version = in.take(1)[0];
  in.take(15);
  h.utc = in.count();
  h.standard = in.count();
  h.leaps = in.count();
  h.times = in.count();
  h.types = in.count();
  h.letters = in.count();
  if (h.types == 0) in.refuse("no local time types");
  return h;
}

chr::year_month_day date_of(int64_t days) { return chr::sys_days(chr::days(days)); }

int64_t floor_days(int64_t seconds) { return seconds >= 0 ? seconds / kDay : -((-seconds + kDay - 1) / kDay); }

int year_of(LocalSeconds local) { return static_cast<int>(date_of(floor_days(local)).year()); }

int64_t first_of(int year, unsigned month) {
  return chr::sys_days(chr::year(year) / chr::month(month) / 1).time_since_epoch().count();
}

}  // namespace

// Parser of POSIX TZ strings: EST5EDT,M3.2.0,M11.1.0 or <+0330>-3:30.
class TimeZone::RuleReader {
 public:
  RuleReader(std::string_view text, const std::string& zone) : text_(text), zone_(zone) {}

  Rule read() {
    Rule rule;
    skip_name();
    rule.standard = -clock(24);  // POSIX offsets are positive west of Greenwich
    if (!done()) {
      rule.has_daylight = true;
      skip_name();
      rule.daylight = rule.standard + 3600;
      if (!done() && text_[at_] != ',') rule.daylight = -clock(24);
      expect(',');
      rule.begins = year_day();
      expect(',');
      rule.ends = year_day();
    }
    if (!done()) refuse();
    return rule;
  }

 private:
  bool done() const { return at_ == text_.size(); }
  [[noreturn]] void refuse() const {
    fail(ErrorCode::bad_data, "{}: invalid zone file: cannot parse rule {} at character {}", zone_, text_, at_ + 1);
  }
  bool take(char c) {
    const bool found = !done() && text_[at_] == c;
    at_ += found ? 1 : 0;
    return found;
  }
  void expect(char c) {
    if (!take(c)) refuse();
  }
  static bool letter(char c) { return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'); }
  static bool digit(char c) { return c >= '0' && c <= '9'; }

  void skip_name() {
    const size_t first = at_;
    if (take('<')) {
      while (!done() && (letter(text_[at_]) || digit(text_[at_]) || text_[at_] == '+' || text_[at_] == '-')) ++at_;
      expect('>');
    } else {
      while (!done() && letter(text_[at_])) ++at_;
    }
    if (at_ - first < 3) refuse();
  }
  int number(int min, int max) {
    int value = 0;
    const size_t first = at_;
    for (; !done() && digit(text_[at_]) && at_ - first < 3; ++at_) value = value * 10 + (text_[at_] - '0');
    if (at_ == first || value < min || value > max) refuse();
    return value;
  }
  // [+-]hh[:mm[:ss]]
  int64_t clock(int max_hours) {
    const bool negative = take('-');
    if (!negative) take('+');
    int64_t seconds = int64_t{3600} * number(0, max_hours);
    if (take(':')) {
      seconds += int64_t{60} * number(0, 59);
      if (take(':')) seconds += number(0, 59);
    }
    return negative ? -seconds : seconds;
  }
  YearDay year_day() {
    YearDay day;
    if (take('M')) {
      day.kind = YearDay::Kind::weekday_of_month;
      day.month = number(1, 12);
      expect('.');
      day.week = number(1, 5);
      expect('.');
      day.day = number(0, 6);
    } else if (take('J')) {
      day.kind = YearDay::Kind::julian_without_leap;
      day.day = number(1, 365) - 1;
    } else {
      day.day = number(0, 365);
    }
    if (take('/')) day.seconds = clock(167);
    return day;
  }

  std::string_view text_;
  const std::string& zone_;
  size_t at_ = 0;
};

LocalSeconds TimeZone::YearDay::in(int year) const {
  int64_t days = 0;
  switch (kind) {
    case Kind::day_of_year:
      days = first_of(year, 1) + day;
      break;
    case Kind::julian_without_leap:  // 29 February is not counted: day 59 is always 1 March
      days = first_of(year, 1) + day + (day >= 59 && chr::year(year).is_leap() ? 1 : 0);
      break;
    case Kind::weekday_of_month: {
      const auto first = chr::year(year) / chr::month(static_cast<unsigned>(month));
      const chr::weekday weekday(static_cast<unsigned>(day));
      const chr::sys_days date = week == 5 ? chr::sys_days(first / weekday[chr::last])
                                           : chr::sys_days(first / weekday[static_cast<unsigned>(week)]);
      days = date.time_since_epoch().count();
      break;
    }
  }
  return days * kDay + seconds;
}

TimeZone TimeZone::load(const std::string& name, const std::filesystem::path& folder) {
  const bool plain = !name.empty() && name[0] != '/' && name.find("..") == std::string::npos &&
                     std::all_of(name.begin(), name.end(), [](unsigned char c) {
                       return std::isalnum(c) != 0 || c == '/' || c == '_' || c == '-' || c == '+';
                     });
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored))
    fail(ErrorCode::usage, Remedy{"install tzdata"}, "zone {}: {} not found", name, folder.string());
  const std::filesystem::path path = folder / name;
  if (!plain || !std::filesystem::is_regular_file(path, ignored))
    fail(ErrorCode::usage, Remedy{"use a name such as America/New_York or UTC"}, "zone {} not found in {}", name,
         folder.string());
  std::ifstream in(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  return parse(bytes, name);
}

TimeZone TimeZone::parse(std::string_view bytes, const std::string& name) {
  if (bytes.size() > kMaxFile) fail(ErrorCode::bad_data, "{}: invalid zone file: {} bytes", name, bytes.size());
  ZoneBytes in(bytes, name);
  ZoneHeader h = read_header(in);
  size_t width = 4;
  if (h.version >= '2') {  // skip the block for version 1 readers
    in.take(h.times * 5 + h.types * 6 + h.letters + h.leaps * 8 + h.standard + h.utc);
    h = read_header(in);
    width = 8;
  }
  TimeZone zone;
  zone.name_ = name;
  if (h.times * (width + 1) + h.types * 6 > bytes.size()) in.refuse("unexpected end");
  std::vector<int64_t> offsets;
  int64_t before = 0;
  for (size_t i = 0; i < h.times; ++i) {
    const int64_t at = in.number(width);
    if (i > 0 && at <= before) in.refuse("transitions out of order");
    before = at;
    zone.changes_.push_back({std::clamp(at, -kMaxTime, kMaxTime), 0});
  }
  const std::string_view kinds = in.take(h.times);
  for (size_t i = 0; i < h.types; ++i) {
    offsets.push_back(in.number(4));
    if (std::abs(offsets.back()) > kMaxOffset) in.refuse("offset above 26 hours");
    in.take(2);
  }
  for (size_t i = 0; i < h.times; ++i) {
    const size_t kind = static_cast<uint8_t>(kinds[i]);
    if (kind >= offsets.size()) in.refuse("invalid type index");
    zone.changes_[i].offset = offsets[kind];
  }
  zone.first_offset_ = offsets[0];
  in.take(h.letters + h.leaps * (width + 4) + h.standard + h.utc);
  if (width == 4) return zone;
  const std::string_view footer = in.rest();
  const size_t end = footer.find('\n', 1);
  if (footer.empty() || footer[0] != '\n' || end == std::string_view::npos) in.refuse("missing footer");
  const std::string_view text = footer.substr(1, end - 1);
  if (!text.empty()) zone.rule_ = RuleReader(text, zone.name_).read();
  return zone;
}

int64_t TimeZone::listed_offset(int64_t t) const {
  const auto after = std::upper_bound(changes_.begin(), changes_.end(), t,
                                      [](int64_t at, const Change& change) { return at < change.at; });
  return after == changes_.begin() ? first_offset_ : std::prev(after)->offset;
}

// Clock changes in a year according to the footer's rule.
std::array<TimeZone::Change, 2> TimeZone::rule_changes(int year) const {
  return {Change{rule_->ends.in(year)-rule_->daylight, rule_->standard},
          Change{rule_->begins.in(year)-rule_->standard, rule_->daylight}};
}

int64_t TimeZone::offset_at(int64_t t) const {
  t = std::clamp(t, -kMaxTime, kMaxTime);
  if (!rule_ || (!changes_.empty() && t < changes_.back().at)) return listed_offset(t);
  if (!rule_->has_daylight) return rule_->standard;
  const int year = year_of(t + rule_->standard);
  Change last{INT64_MIN, rule_->standard};
  for (int y = year - 1; y <= year + 1; ++y)
    for (const Change& change : rule_changes(y))
      if (change.at <= t && change.at >= last.at)
        last = change;  // equal times: daylight saving that ends and restarts at once continues
  return last.offset;
}

std::optional<int64_t> TimeZone::next_change(int64_t t) const {
  if (t >= kMaxTime) return std::nullopt;
  t = std::max(t, -kMaxTime);
  const int64_t now = offset_at(t);
  for (const Change& change : changes_)
    if (change.at > t && offset_at(change.at) != now) return change.at;
  if (!rule_ || !rule_->has_daylight) return std::nullopt;
  const int64_t from = changes_.empty() ? t : std::max(t, changes_.back().at);
  const int year = year_of(from + rule_->standard);
  int64_t next = INT64_MAX;
  for (int y = year - 1; y <= year + 2; ++y)
    for (const Change& change : rule_changes(y))
      if (change.at > from && change.at < next && offset_at(change.at) != now) next = change.at;
  return next == INT64_MAX ? std::nullopt : std::optional(next);
}

std::vector<int64_t> TimeZone::moments_of(LocalSeconds local) const {
  std::vector<int64_t> all;
  if (local < -kMaxTime || local > kMaxTime) return all;
  for (int64_t from = local - kMaxOffset; from <= local + kMaxOffset;) {
    const std::optional<int64_t> until = next_change(from);
    const int64_t moment = local - offset_at(from);
    if (moment >= from && (!until || moment < *until)) all.push_back(moment);
    if (!until) break;
    from = *until;
  }
  return all;
}

}  // namespace brim::serve
