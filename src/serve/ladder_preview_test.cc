// SPDX-License-Identifier: Apache-2.0
#include "serve/ladder_preview.h"

#include <filesystem>

#include "base/settings.h"
#include "base/test_files.h"

namespace brim::serve {
namespace {

using Lines = std::vector<std::string>;

class LadderPreviewTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists("/usr/share/zoneinfo/America/New_York")) GTEST_SKIP() << "no tzdata";
    rules_.name = "mood";
    rules_.rungs = {{"finbert", {}}, {"distil", {}}, {"vader", {}}};
    rules_.sources = {{{"reuters", "bloom*"}, "finbert", false}};
    rules_.schedule =
        Schedule(TimeZone::load("America/New_York"), MarketRungs{MarketCalendar::nyse(), "distil", "distil", "vader"});
  }
  LadderRules rules_;
};

TEST_F(LadderPreviewTest, NamesRungReasonAndNextChange) {
  Ladder ladder(rules_);
  EXPECT_EQ(preview_lines(ladder, parse_preview_time("2024-06-03 10:00", ladder)),
            (Lines{"ladder mood at 2024-06-03 10:00 America/New_York, market open: distil (schedule)",
                   "ladder mood: next change at 2024-06-03 20:00 America/New_York: vader",
                   "ladder mood: source reuters, bloom*: finbert (source)"}));
  EXPECT_EQ(preview_lines(ladder, parse_preview_time("2024-06-03 23:00", ladder)),
            (Lines{"ladder mood at 2024-06-03 23:00 America/New_York, market closed: vader (schedule)",
                   "ladder mood: next change at 2024-06-04 04:00 America/New_York: distil",
                   "ladder mood: source reuters, bloom*: vader (schedule)"}))
      << "sources are ignored while the market is closed";
}

TEST_F(LadderPreviewTest, NamesUnavailableRungs) {
  Ladder ladder(rules_);
  ladder.report_fault("distil", "no such directory");
  EXPECT_HAS(preview_lines(ladder, parse_preview_time("2024-06-03 10:00", ladder)).front(),
             ": vader (schedule) instead of distil: no such directory");
  ladder.report_fault("finbert", "missing");
  ladder.report_fault("vader", "missing");
  EXPECT_HAS(preview_lines(ladder, parse_preview_time("2024-06-03 10:00", ladder)).front(), "no rung is available");
}

TEST_F(LadderPreviewTest, ReadsTimesInTheZoneOfTheSchedule) {
  const Ladder ladder(rules_);
  EXPECT_EQ(parse_preview_time("2024-06-03 10:00", ladder), 1717423200);
  EXPECT_EQ(parse_preview_time("2024-06-03T14:00Z", ladder), 1717423200);
  EXPECT_EQ(parse_preview_time("2024-06-03T16:00:00+02:00", ladder), 1717423200);
  LadderRules plain = rules_;
  plain.schedule.reset();
  plain.sources.clear();
  Ladder without(plain);
  EXPECT_EQ(parse_preview_time("2024-06-03 14:00", without), 1717423200) << "UTC without a schedule";
  EXPECT_EQ(preview_lines(without, 1717423200), Lines{"ladder mood at 2024-06-03 14:00 UTC: finbert (default)"});
  for (const char* bad : {"", "noon", "2024-06-03", "1717423200", "2024-06-03 25:00", "2024-03-10 02:30"})
    EXPECT_THROW(parse_preview_time(bad, ladder), BadValue) << bad;
}

}  // namespace
}  // namespace brim::serve
