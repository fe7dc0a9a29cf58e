// SPDX-License-Identifier: Apache-2.0
#include "rows/timestamps.h"

#include <gtest/gtest.h>

#include "base/fuzz_driver.h"

#define LLVMFuzzerTestOneInput fuzz_timestamps
#include "rows/timestamps_fuzz.cc"
#undef LLVMFuzzerTestOneInput

namespace brim::rows {
namespace {

constexpr int64_t kHour = 3'600'000'000, kDay = 24 * kHour;

int64_t at(const char* text) {
  const auto time = parse_timestamp(text);
  EXPECT_TRUE(time) << text;
  return time ? time->value : 0;
}

TEST(Timestamps, ReadsCommonFormats) {
  EXPECT_EQ(at("1970-01-01"), 0);
  EXPECT_EQ(at("1969-12-31 23:00"), -kHour);
  EXPECT_EQ(at("2016-07-01 13:00:00") - at("2016-07-01"), 13 * kHour);
  EXPECT_EQ(at("2016-07-01T00:00:00.250000000Z") - at("2016/07/01"), 250'000);
  EXPECT_EQ(at("2016-07"), at("2016-07-01"));
  EXPECT_EQ(at("2016Q3"), at("2016-07-01"));
  EXPECT_EQ(at("2016-Q3"), at("20160701"));
  EXPECT_EQ(at("2016-02-29"), at("2016-03-01") - kDay);
  EXPECT_EQ(at(" 17 "), 17);
  EXPECT_EQ(at("-3"), -3);
  EXPECT_EQ(at("1990"), 1990);  // an integer; yearly steps work all the same
  EXPECT_EQ(parse_timestamp("2016-07-01 13:00+05:30")->style.zone, 330);
  EXPECT_EQ(parse_timestamp("2016-07-01 13:00-0800")->style.zone, -480);
}

TEST(Timestamps, RejectsInvalidTimes) {
  for (const char* text :
       {"", "x", "2016-13-01", "2015-02-29", "2016-07-01 24:00", "2016-07-01 13:60", "07/01/2016", "01.07.2016",
        "2016-7-1", "2016-07-01 13", "2016Q5", "2016-07-01 13:00:00.0000001", "2016-07-01 13:00 CET", "1e5", "3.5",
        "2016-07-01T", "99999999999999999999", "2016-07-01 13:00+25:00", "2016-07-01x"})
    EXPECT_FALSE(parse_timestamp(text)) << text;
}

TEST(Timestamps, KeepsTheFormat) {
  for (const char* text : {"2016-07-01", "2016/07/01", "20160701", "2016-07", "2016Q3", "2016-Q1", "2016-07-01 13:05",
                           "2016-07-01T13:05:09", "2016-07-01 13:05:09.250000", "2016-07-01T13:05:09Z",
                           "2016-07-01 13:05+05:30", "-17", "0"}) {
    const auto time = parse_timestamp(text);
    ASSERT_TRUE(time) << text;
    EXPECT_EQ(format_time(time->value, time->style), text);
  }
}

TEST(Timestamps, NamesFrequencies) {
  for (const auto& [name, shown, season] :
       {std::tuple("H", "H", 24), std::tuple("h", "H", 24), std::tuple("15min", "15min", 96), std::tuple("D", "D", 1),
        std::tuple("B", "B", 1), std::tuple("W-SUN", "W", 1), std::tuple("MS", "M", 12), std::tuple("QS-JAN", "Q", 4),
        std::tuple("Y", "Y", 1), std::tuple("2H", "2H", 12), std::tuple("index", "index", 1),
        std::tuple("60min", "H", 24), std::tuple("12M", "Y", 1)}) {
    const auto frequency = parse_frequency(name);
    ASSERT_TRUE(frequency) << name;
    EXPECT_EQ(frequency_name(*frequency), shown);
    EXPECT_EQ(season_of(*frequency), season) << name;
  }
  for (const char* name : {"", "X", "0H", "hourly", "-1D", "2B", "m", "999999999999999999999H"})
    EXPECT_FALSE(parse_frequency(name)) << name;
  // 100 steps of 20016Q would overflow microseconds.
  for (const char* name : {"20016Q", "1001Y", "100000W"}) EXPECT_FALSE(parse_frequency(name)) << name;
  for (const char* name : {"4000Q", "1000Y", "50000W", "100000index"}) EXPECT_TRUE(parse_frequency(name)) << name;
}

TEST(Timestamps, StepsAlongCalendars) {
  const auto after = [](const char* frequency, const char* time, int64_t steps) {
    const auto start = parse_timestamp(time);
    return format_time(time_after(*parse_frequency(frequency), start->value, steps), start->style);
  };
  EXPECT_EQ(after("M", "2015-01-31", 1), "2015-02-28");  // ends of months stay ends
  EXPECT_EQ(after("M", "2015-02-28", 1), "2015-03-31");
  EXPECT_EQ(after("M", "2015-01-30", 1), "2015-02-28");
  EXPECT_EQ(after("M", "2015-01-15", 13), "2016-02-15");
  EXPECT_EQ(after("Q", "2015Q4", 2), "2016Q2");
  EXPECT_EQ(after("Y", "2016-02-29", 1), "2017-02-28");
  EXPECT_EQ(after("B", "2015-01-02", 1), "2015-01-05");  // a Friday
  EXPECT_EQ(after("B", "2015-01-05", -1), "2015-01-02");
  EXPECT_EQ(after("B", "2015-01-05", 10), "2015-01-19");
  EXPECT_EQ(after("W", "2014-12-28", 1), "2015-01-04");
  EXPECT_EQ(after("15min", "2014-12-31 23:45", 1), "2015-01-01 00:00");
  EXPECT_EQ(after("index", "7", 3), "10");
}

Frequency commonest(std::initializer_list<const char*> times) {
  GapCount count;
  std::optional<Timestamp> last;
  for (const char* text : times) {
    const auto time = *parse_timestamp(text);
    if (!time.is_integer() && is_weekend(time.value)) count.saw_weekend();
    if (last) count.add(time.value - last->value, 1);
    last = time;
  }
  return count.frequency(last->is_integer());
}

TEST(Timestamps, DetectsTheMostFrequentGap) {
  EXPECT_EQ(frequency_name(commonest({"2016-07-01 00:00", "2016-07-01 01:00", "2016-07-01 02:00"})), "H");
  EXPECT_EQ(frequency_name(commonest({"2015-01-01", "2015-01-02", "2015-01-05", "2015-01-06"})), "B");
  EXPECT_EQ(frequency_name(commonest({"2015-01-01", "2015-01-02", "2015-01-03", "2015-01-06", "2015-01-07"})), "D");
  EXPECT_EQ(frequency_name(commonest({"2015-01-31", "2015-02-28", "2015-03-31"})), "M");
  EXPECT_EQ(frequency_name(commonest({"2015-01", "2015-02", "2015-03"})), "M");
  EXPECT_EQ(frequency_name(commonest({"2015-01-01", "2015-01-29", "2015-02-26", "2015-03-26"})), "4W");
  EXPECT_EQ(frequency_name(commonest({"2015Q1", "2015Q2", "2015Q3"})), "Q");
  EXPECT_EQ(frequency_name(commonest({"2015-01-01", "2016-01-01", "2017-01-01"})), "Y");
  EXPECT_EQ(frequency_name(commonest({"1", "2", "3"})), "index");
  EXPECT_EQ(frequency_name(commonest({"0", "3600", "7200", "14400"})), "3600index");
}

TEST(Timestamps, Fuzz) {
  drive_fuzz(fuzz_timestamps,
             {"2016-07-01 13:00:00\nH", "2016-02-29\nM", "2016Q3\nQ", "2015-01-02T13:05:09.25+05:30\nB", "20160701\nD",
              "17\nindex", "9999-12-31\n15min", "0001-01-01\nY", "-5\n3index"},
             20000);
}

}  // namespace
}  // namespace brim::rows
