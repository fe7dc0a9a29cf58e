// SPDX-License-Identifier: Apache-2.0
#include "serve/dashboard.h"

#include "base/test_files.h"

namespace brim::serve {
namespace {

using SnapshotJson = nlohmann::ordered_json;

TimeZone new_york_by_rule() {
  std::string block = "TZif2" + std::string(23, '\0') + std::string(8, '\0');
  block += std::string(3, '\0') + '\1' + std::string(3, '\0') + '\4' + std::string(6, '\0') + std::string("LMT\0", 4);
  return TimeZone::parse(block + block + "\nEST5EDT,M3.2.0,M11.1.0\n", "America/New_York");
}

LadderRules dashboard_rules() {
  LadderRules r;
  r.name = "sentiment";
  r.rungs = {{"finbert", {}}, {"distil", {}}, {"vader", {}}};
  r.default_rung = "distil";
  r.schedule = Schedule(new_york_by_rule(), MarketRungs{MarketCalendar::nyse(), "distil", "", "vader"});
  return r;
}

constexpr int64_t kTuesdayNoon = 1780416000;  // 2026-06-02 12:00 in New York

TEST(Dashboard, ScheduleOfDayIsCompleteAndOrdered) {
  const Ladder ladder(dashboard_rules());
  const std::vector<RungSpan> day = schedule_of_day(ladder, kTuesdayNoon);
  ASSERT_EQ(day.size(), 3u);
  EXPECT_EQ(day.front().from_unix, kTuesdayNoon - 12 * 3600);
  EXPECT_EQ(day.back().to_unix, kTuesdayNoon + 12 * 3600);
  const char* rungs[] = {"vader", "distil", "vader"};  // default during extended hours
  for (size_t i = 0; i < day.size(); ++i) {
    EXPECT_EQ(day[i].rung, rungs[i]);
    EXPECT_EQ(day[i].from_unix, i > 0 ? day[i - 1].to_unix : day[i].from_unix);
  }
  EXPECT_EQ(schedule_of_day(ladder, 1730638800).size(), 1u) << "a Sunday of 25 hours";
  EXPECT_EQ(schedule_of_day(ladder, 1730638800)[0].to_unix - schedule_of_day(ladder, 1730638800)[0].from_unix, 90000);
  LadderRules plain = dashboard_rules();
  plain.schedule.reset();
  EXPECT_TRUE(schedule_of_day(Ladder(plain), kTuesdayNoon).empty());
}

// A snapshot with all figures, with names that contain markup.
DashboardSnapshot full_snapshot() {
  Ladder ladder(dashboard_rules());
  ladder.report_fault("finbert", "<img src=x onerror=alert(1)>: no such directory");
  GateFigures figures;
  figures.rows = 500;
  figures.macro_recall = 0.88;
  figures.against_recall = 0.89;
  figures.agreement = 0.93;
  ladder.report_gate("distil", figures);
  DashboardSnapshot s;
  s.t_unix_ms = kTuesdayNoon * 1000;
  s.state = "degraded";
  s.version = "0.1.0";
  s.model = "distil";
  s.reason = "schedule";
  s.uptime_s = 7260;
  s.texts_s = 1830.5;
  s.tokens_s = 51200;
  s.requests_s = 212.25;
  s.texts = 1'204'377;
  s.tokens = 33'119'062;
  s.requests = 140'224;
  s.p50_ms = 3.5;
  s.p95_ms = 6.25;
  s.p99_ms = 9.75;
  s.buckets = {{1.9, {{"infer", 12}}},
               {2.9, {{"infer", 340}, {"queue", 12}}},
               {4.3, {{"infer", 820}, {"queue", 150}, {"write", 3}}},
               {6.5, {{"queue", 240}, {"infer", 60}, {"tokenize", 5}}},
               {9.7, {{"queue", 80}, {"parse", 2}}},
               {14.6, {{"queue", 6}}}};
  s.queue = {38.5, 1000, 1800, 64000, 3, 1, 0};
  s.device = {"NVIDIA GeForce RTX 3060",
              0.71,
              0.33,
              3'100'000'000,
              2'900'000'000,
              4'294'967'296,
              {{"weights", 1'400'000'000}, {"arena", 900'000'000}, {"context", 500'000'000}, {"staging", 100'000'000}},
              {{"healthy", true}, {"temperature_c", 63}, {"power_w", 121.5}, {"sm_clock_mhz", 1777}}};
  s.batches = {0.62,
               0.64,
               4096,
               78.5,
               {{"no_work", 0.21}, {"pack", 0.04}, {"collect", 0.02}, {"switch", 0.01}},
               312'445,
               {{16.0, 120},
                {32.0, 940},
                {64.0, 2210},
                {128.0, 3105},
                {256.0, 1804},
                {512.0, 920},
                {1024.0, 2100},
                {2048.0, 6200},
                {4096.0, 18440},
                {8192.0, 33120},
                {16384.0, 0},
                {std::nullopt, 0}}};
  s.models = {{"finbert", "failed", "bf16", {}, {}, {}, {}, 600.0},
              {"distil", "resident", "bf16", 134'000'000, 8192, 1830.5, 9.75, -1.0},
              {"<script>alert(1)</script>", "parked", "fp16", 250'000'000, 8192, 0.0, {}, 300.0, "distil"}};
  s.ladders = {{ladder.view(kTuesdayNoon), schedule_of_day(ladder, kTuesdayNoon), 0.04, "America/New_York"}};
  s.queues = {{{"queue", "news"},
               {"model", "sentiment"},
               {"queued", 7},
               {"oldest_ms", 1400},
               {"unseen_flushes", 2},
               {"read_only", false}}};
  s.jobs = {{{"id", "batch_5f2c"},
             {"status", "in_progress"},
             {"model", "distil"},
             {"progress", 0.43},
             {"rows_per_second", 5120.0},
             {"seconds_left", 95.0},
             {"request_counts", {{"total", nullptr}, {"completed", 430120}, {"failed", 12}}}}};
  s.switches = {{(kTuesdayNoon - 9000) * 1000, "sentiment: vader → distil (schedule)"}};
  s.warnings = s.ladders[0].view.warnings;
  return s;
}

TEST(Dashboard, SnapshotKeepsItsFormat) {
  const std::string path = BRIM_SOURCE_DIR "/tests/data/serve/dashboard_snapshot.json";
  EXPECT_EQ(to_json(full_snapshot()), SnapshotJson::parse(get_file(path))) << to_json(full_snapshot()).dump(1);
  const SnapshotJson empty = to_json(DashboardSnapshot());
  EXPECT_TRUE(empty["rates"]["texts_s"].is_null()) << "unknown values are null";
  EXPECT_TRUE(empty["device"]["memory"]["limit"].is_null());
  EXPECT_TRUE(empty["queues"].is_array());
}

TEST(Dashboard, PageLoadsNothingExternalAndSetsOnlyText) {
  const std::string page(dashboard_html());
  EXPECT_LT(page.size(), 120u << 10);
  EXPECT_EQ(page.find("@css@"), std::string::npos);
  EXPECT_EQ(page.find("@js@"), std::string::npos);
  for (const char* risky :
       {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", " style=\"", "onclick=", "//cdn"})
    EXPECT_EQ(page.find(risky), std::string::npos) << risky;
  const std::string name = "http://www.w3.org/2000/svg";
  EXPECT_EQ(page.find("http"), page.find(name)) << "the only URL is the SVG namespace";
  EXPECT_EQ(page.find("http", page.find(name) + name.size()), std::string::npos);
  EXPECT_HAS(dashboard_policy(), "default-src 'none'; script-src 'sha256-");
  const size_t hash = dashboard_policy().find("sha256-") + 7;
  EXPECT_EQ(dashboard_policy().find('\'', hash) - hash, 44u);
  EXPECT_EQ(dashboard_policy()[hash + 43], '=');
}

TEST(Dashboard, BoundsHistory) {
  DashboardHistory history;
  EXPECT_EQ(history.json(15), "[]");
  DashboardSnapshot s;
  for (int second = 0; second < 3600; ++second) {
    s.t_unix_ms = second * 1000;
    history.add(s);
  }
  const SnapshotJson all = SnapshotJson::parse(history.json(15));
  EXPECT_EQ(all.size(), 181u);
  EXPECT_EQ(all.back()["t_unix_ms"], 3'595'000);
  EXPECT_EQ(SnapshotJson::parse(history.json(1)).size(), 13u);
}

}  // namespace
}  // namespace brim::serve
