// SPDX-License-Identifier: Apache-2.0
#include "report/profile_change.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/test_files.h"

namespace brim::report {
namespace {

std::string made_profile(double one_text_ms, double least, double rate, double most, const char* more = "") {
  return fmt::format(R"({{"generated_at":"2026-11-16T10:00:00Z","machine":{{"cpu":"a core"}},"results":[)"
                     R"({{"model_name":"default","device":"cpu","precision":"bf16","load_time_ms":400,)"
                     R"("inference_time_ms":{},"vram_used_mb":0.0,"batch_results":[{{"batch_size":20,)"
                     R"("items_per_second":{},"items_per_second_range":{{"count":5,"min":{},"max":{}}}}}],)"
                     R"("size_results":[{{"rows":1000,"items_per_second":{},"items_per_second_range":null}}]}}{}]}})",
                     one_text_ms, rate, least, most, rate, more);
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(ProfileChange, ReportsDifferencesBeyondNoise) {
  const std::string before = made_profile(4, 90, 100, 110);
  const std::string faster = profile_change(before, made_profile(2, 111, 150, 160), "old.json");
  EXPECT_TRUE(contains(faster, "before and after: old.json from 2026-11-16T10:00:00Z\n")) << faster;
  EXPECT_TRUE(contains(faster, "  default  load, ms             400.0  400.0  +0.0 %\n")) << faster;
  EXPECT_TRUE(contains(faster, "  default  one text, ms           4.0    2.0  -50.0 %\n")) << faster;
  EXPECT_TRUE(contains(faster, "texts/s, 20 a call")) << faster;
  EXPECT_TRUE(contains(faster, "100.0  150.0  +50.0 %  faster\n")) << faster;
  EXPECT_TRUE(contains(faster, "texts/s, 1000 rows")) << faster;
  EXPECT_TRUE(contains(faster, "100.0  150.0  +50.0 %\n")) << "one round gives no noise estimate\n" << faster;
  EXPECT_FALSE(contains(faster, "note:"));
  EXPECT_TRUE(contains(profile_change(before, made_profile(4, 80, 85, 89), "x"), "-15.0 %  slower\n"));
  std::string few = made_profile(4, 80, 85, 89);
  few.replace(few.find("\"count\":5"), 9, "\"count\":4");
  EXPECT_TRUE(contains(profile_change(before, few, "x"), "-15.0 %  too few rounds\n"));
  EXPECT_TRUE(
      contains(profile_change(before, made_profile(4, 80, 95, 120), "x"), "-5.0 %  within the range of the rounds"));
}

TEST(ProfileChange, GivesNoPercentageOfRounding) {
  const std::string text = profile_change(made_profile(0.0009, 90, 100, 110), made_profile(0.0921, 90, 100, 110), "x");
  EXPECT_TRUE(contains(text, "  default  one text, ms           0.0    0.1  –\n")) << text;
  EXPECT_TRUE(contains(text, "  default  GPU memory, MiB        0.0    0.0  –\n")) << text;
  EXPECT_TRUE(contains(profile_change(made_profile(0.2, 1, 2, 3), made_profile(0.3, 1, 2, 3), "x"), "+50.0 %\n"));
}

TEST(ProfileChange, ReportsIncomparableValues) {
  const std::string other = R"(,{"model_name":"vader","batch_results":[]})";
  std::string after = made_profile(4, 90, 100, 110, other.c_str());
  after.replace(after.find("a core"), 6, "b core");
  after.replace(after.find("bf16"), 4, "fp32");
  const std::string text = profile_change(made_profile(4, 90, 100, 110), after, "old.json");
  EXPECT_TRUE(contains(text, "note: different machine: a core before, b core now\n")) << text;
  EXPECT_TRUE(contains(text, "note: default: precision was bf16, now fp32\n")) << text;
  EXPECT_TRUE(contains(text, "note: vader was not measured before\n")) << text;
}

TEST(ProfileChange, RejectsAnInvalidProfile) {
  const TempDir dir;
  put_file(dir / "none.json", "{\"a\":1}");
  put_file(dir / "text", "hello");
  put_file(dir / "good.json", made_profile(4, 90, 100, 110));
  for (const char* bad : {"none.json", "text", "missing"}) EXPECT_THROW(read_profile(dir / bad), Error) << bad;
  EXPECT_EQ(read_profile(dir / "good.json"), made_profile(4, 90, 100, 110));
}

}  // namespace
}  // namespace brim::report
