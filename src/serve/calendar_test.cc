// SPDX-License-Identifier: Apache-2.0
#include "serve/calendar.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include "base/test_files.h"

namespace brim::serve {
namespace {

namespace chr = std::chrono;

const char* const kNewYork = "EST5EDT,M3.2.0,M11.1.0";

// A zone defined by its rule, so that tests do not depend on the system's tzdata.
TimeZone zone_by_rule(const std::string& rule) {
  std::string block = "TZif2" + std::string(15, '\0');
  for (const char count : {'\0', '\0', '\0', '\0', '\1', '\4'}) block += std::string(3, '\0') + count;
  block += std::string(6, '\0') + std::string("LMT\0", 4);
  return TimeZone::parse(block + block + "\n" + rule + "\n", rule);
}

struct State {
  int64_t from;
  Market market;
};

// All state changes of six years, written by tools/make_calendar_goldens.py.
std::vector<State> nyse_states() {
  std::ifstream in(BRIM_SOURCE_DIR "/tests/data/serve/nyse_days.txt");
  std::vector<State> all;
  std::string date;
  int64_t early = 0, open = 0, close = 0, late = 0;
  while (in >> date >> early >> open >> close >> late) {
    all.push_back({early, Market::extended});
    all.push_back({early + open * 60, Market::open});
    all.push_back({early + close * 60, Market::extended});
    all.push_back({early + late * 60, Market::closed});
  }
  return all;
}

Schedule nyse() {
  MarketRungs rungs{MarketCalendar::nyse(), "distil", "small", "vader"};
  rungs.calendar.read_exceptions("# a day of mourning\n2025-01-09 closed  # Carter\n", "days.txt");
  return {zone_by_rule(kNewYork), std::move(rungs)};
}

TEST(Calendar, MatchesExchangeTableForSixYears) {
  const std::vector<State> states = nyse_states();
  ASSERT_GT(states.size(), 6000u);
  const Schedule schedule = nyse();
  size_t at = 0;
  int wrong = 0;
  for (int64_t now = states.front().from; now < states.back().from; now += 60) {
    while (states[at + 1].from <= now) ++at;
    wrong += schedule.market_at(now) != states[at].market ? 1 : 0;
    if (wrong == 1) ADD_FAILURE() << "at " << now;
    if (wrong > 0) break;
  }
}

TEST(Calendar, NextChangeMatchesExchangeTable) {
  const std::vector<State> states = nyse_states();
  const Schedule schedule = nyse();
  int64_t now = states.front().from;
  for (size_t i = 1; i < states.size(); ++i) {
    const std::optional<int64_t> next = schedule.next_change(now);
    ASSERT_TRUE(next) << i;
    ASSERT_EQ(*next, states[i].from) << "after " << now;
    ASSERT_EQ(schedule.market_at(*next - 1), states[i - 1].market);
    now = *next;
  }
  EXPECT_EQ(schedule.rung_at(states[0].from), "small");
  EXPECT_EQ(schedule.rung_at(states[1].from), "distil");
  EXPECT_EQ(schedule.rung_at(states[3].from), "vader");
}

TEST(Calendar, SupportsFixedMarketState) {
  Schedule schedule = nyse();
  schedule.fix_market(Market::extended);
  EXPECT_EQ(schedule.rung_at(0), "small");
  EXPECT_EQ(schedule.next_change(0), std::nullopt);
}

TEST(Calendar, AppliesSpansByWeekday) {
  // Monday 2026-06-01 00:00 in New York.
  const int64_t monday = 1780286400;
  const Schedule schedule(zone_by_rule(kNewYork), {{*weekdays_of("mon-fri"), 7 * 60, 22 * 60, "large"},
                                                   {*weekdays_of("fri"), 21 * 60, 2 * 60, "night"},
                                                   {*weekdays_of("sat,sun"), 0, 24 * 60, "weekend"}});
  EXPECT_EQ(schedule.market_at(monday), std::nullopt);
  const auto at = [&](int day, int hour, int minute) {
    return schedule.rung_at(monday + ((day * 24 + hour) * 60 + minute) * 60);
  };
  EXPECT_EQ(at(0, 6, 59), "");
  EXPECT_EQ(at(0, 7, 0), "large");
  EXPECT_EQ(at(0, 21, 59), "large");
  EXPECT_EQ(at(0, 22, 0), "");
  EXPECT_EQ(at(4, 21, 30), "large") << "the first matching span";
  EXPECT_EQ(at(4, 22, 0), "night");
  EXPECT_EQ(at(5, 1, 59), "night") << "past midnight";
  EXPECT_EQ(at(5, 2, 0), "weekend");
  EXPECT_EQ(at(6, 23, 59), "weekend");
  EXPECT_EQ(at(7, 0, 0), "");
  EXPECT_EQ(schedule.next_change(monday), monday + 7 * 3600);
  EXPECT_EQ(schedule.next_change(monday + 5 * 86400 + 3 * 3600), monday + 7 * 86400);
  EXPECT_EQ(Schedule(zone_by_rule("UTC0"), std::vector<TimedRung>{}).next_change(monday), std::nullopt);
}

// Next changes of unusual spans during a year with both clock changes, compared with a scan of every minute.
TEST(Calendar, NextChangeHandlesSpansDuringClockChanges) {
  const Schedule schedule(zone_by_rule(kNewYork), {{*weekdays_of("sun"), 75, 105, "twice"},     // 01:15 to 01:45
                                                   {*weekdays_of("sun"), 130, 170, "skipped"},  // 02:10 to 02:50
                                                   {*weekdays_of("fri-sun"), 23 * 60, 90, "over"}});
  const int64_t first = 1767225600, last = first + 365 * 86400;
  int64_t expected = *schedule.next_change(first);
  std::string before = schedule.rung_at(first);
  int changes = 0;
  for (int64_t now = first + 60; now < last; now += 60) {
    const std::string rung = schedule.rung_at(now);
    if (rung == before) {
      ASSERT_LT(now, expected);
      continue;
    }
    ASSERT_EQ(now, expected) << rung;
    before = rung;
    expected = *schedule.next_change(now);
    ++changes;
  }
  EXPECT_GT(changes, 300);
}

TEST(Calendar, ParsesDaysAndTimes) {
  EXPECT_EQ(weekdays_of("mon-fri"), 0b0111110);
  EXPECT_EQ(weekdays_of("Fri-Mon"), 0b1100011);
  EXPECT_EQ(weekdays_of("sat, sun"), 0b1000001);
  EXPECT_EQ(weekdays_of("daily"), 0b1111111);
  for (const char* bad : {"", "monday", "mon-", "-fri", "mon,,tue", "mon-fri-sun"})
    EXPECT_FALSE(weekdays_of(bad)) << bad;
  EXPECT_EQ(minute_of_day("09:30"), 570);
  EXPECT_EQ(minute_of_day("24:00"), 1440);
  for (const char* bad : {"9:30", "24:01", "09:60", "0930", "ab:cd", "", "-1:30"})
    EXPECT_FALSE(minute_of_day(bad)) << bad;
}

TEST(Calendar, ReadsExceptionsFromFile) {
  MarketCalendar calendar = MarketCalendar::nyse();
  const Date holiday(chr::year(2026) / 12 / 25), eve(chr::year(2026) / 12 / 24), usual(chr::year(2026) / 6 / 2);
  EXPECT_FALSE(calendar.day(holiday).trades);
  EXPECT_EQ(calendar.day(eve).close, 13 * 60);
  EXPECT_EQ(calendar.day(eve).late, 17 * 60);
  calendar.read_exceptions("2026-12-25 open\n\n2026-12-24 closed\r\n 2026-06-02 close 14:30", "days.txt");
  EXPECT_EQ(calendar.day(holiday).close, 16 * 60);
  EXPECT_FALSE(calendar.day(eve).trades);
  EXPECT_EQ(calendar.day(usual).at(14 * 60 + 30), Market::extended);
  EXPECT_EQ(calendar.day(usual).at(18 * 60 + 30), Market::closed);
  for (const char* bad :
       {"2026-13-01 closed", "2026-02-30 closed", "x", "2026-02-03", "2026-02-03 shut", "2026-02-03 close",
        "2026-02-03 close 25:00", "2026-02-03 close 08:00", "2026-02-03 open 1", "2026-2-03 closed"})
    EXPECT_HAS(error_of(ErrorCode::usage, [&] { calendar.read_exceptions(std::string("#\n") + bad, "days.txt"); }),
               "days.txt:2");
}

}  // namespace
}  // namespace brim::serve
