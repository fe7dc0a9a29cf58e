// SPDX-License-Identifier: Apache-2.0
#include "monitor/summary.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <sstream>

#include "monitor/snapshot.h"

namespace brim::monitor {
namespace {

constexpr int64_t kMorning = 1794873600;  // 2026-11-17 00:00:00 UTC

std::string sample_line(int64_t unix_seconds, double mib, unsigned degrees, const std::string& warning = "") {
  Snapshot s;
  s.unix_ns = unix_seconds * 1'000'000'000;
  GpuSample gpu;
  gpu.name = "NVIDIA H200";
  gpu.used_bytes = static_cast<int64_t>(mib) << 20;
  gpu.temperature_c = degrees;
  s.gpus.push_back(gpu);
  s.host.memory_total_bytes = int64_t{1000} << 20;
  s.host.memory_available_bytes = int64_t{600} << 20;
  if (!warning.empty()) s.warnings.push_back(warning);
  return to_json(s) + "\n";
}

std::string summary_of(const std::string& log) {
  std::istringstream in(log);
  LogSummary summary;
  summary.read(in);
  return summary.text();
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(LogSummary, ReportsHoursAndTotals) {
  std::string log;
  // 100 samples per hour, 36 s apart: memory 1 to 100 MiB, then ten times that; 40 and 50 degrees alternating.
  for (int hour = 0; hour < 2; ++hour)
    for (int i = 0; i < 100; ++i)
      log += sample_line(kMorning + hour * 3600 + i * 36, (i + 1) * (hour == 0 ? 1 : 10), i % 2 == 0 ? 40 : 50);
  const std::string text = summary_of(log);
  EXPECT_TRUE(contains(text, "2026-11-17 00:00:00 to 2026-11-17 01:59:24 UTC, 200 samples\n")) << text;
  EXPECT_TRUE(contains(text, "one sample every 36 s\nno gaps\n")) << text;
  EXPECT_TRUE(contains(text, "\nGPU 0 NVIDIA H200\n")) << text;
  const auto row = [](const char* what, int samples, std::initializer_list<int> values) {
    std::string line = fmt::format("  {:<14}{:>8}", what, samples);
    for (const int value : values) line += fmt::format("{:>9}", value);
    return line + "\n";
  };
  EXPECT_TRUE(contains(text, row("2026-11-17 00", 100, {1, 50, 95, 100, 40, 45, 50, 50}))) << text;
  EXPECT_TRUE(contains(text, row("2026-11-17 01", 100, {10, 505, 950, 1000, 40, 45, 50, 50}))) << text;
  EXPECT_TRUE(contains(text, row("whole", 200, {1, 278, 900, 1000, 40, 45, 50, 50}))) << text;
  EXPECT_TRUE(contains(text, row("whole", 200, {400, 400, 400, 400}))) << "host memory\n" << text;
  EXPECT_FALSE(contains(text, "warnings"));
}

TEST(LogSummary, ReportsGapsAndInvalidLines) {
  std::string log;
  for (int i = 0; i < 10; ++i) log += sample_line(kMorning + i, 10, 40);
  for (int i = 0; i < 10; ++i) log += sample_line(kMorning + 600 + i, 10, 40, i < 2 ? "GPU 0: 61 °C, above 60 °C" : "");
  log += "not JSON\n{\"time\":\"yesterday\"}\n{\"time\":\"2026-13-40T00:00:00.000Z\"}\n[]\n";
  for (int i = 0; i < 10; ++i) log += sample_line(kMorning + 300 + i, 10, 40);  // another log appended
  log += sample_line(kMorning + 320, 10, 40).substr(0, 40);                     // truncated
  const std::string text = summary_of(log);
  EXPECT_TRUE(contains(text, "30 samples\none sample every 1.0 s\n")) << text;
  EXPECT_TRUE(contains(text, "gap: 2026-11-17 00:00:09 to 2026-11-17 00:10:00 (9 min 51 s)\n")) << text;
  EXPECT_TRUE(contains(text, "the clock went back from 2026-11-17 00:10:09 to 2026-11-17 00:05:00\n")) << text;
  EXPECT_TRUE(contains(text, "9 min 51 s without samples in total\n")) << text;
  EXPECT_TRUE(contains(text, "5 invalid lines, the first is line 21\n")) << text;
  EXPECT_TRUE(contains(text, "\nwarnings\n     2 x  GPU 0: 61 °C, above 60 °C\n")) << text;
}

TEST(LogSummary, UnresponsiveGpuIsNotZero) {
  Snapshot s;
  s.unix_ns = kMorning * 1'000'000'000;
  s.gpus.resize(2);
  s.gpus[1].index = 1;
  s.gpus[1].temperature_c = 33;
  const std::string text = summary_of(to_json(s) + "\n" + to_json(s) + "\n");
  EXPECT_TRUE(contains(text, "GPU 0: no reading in 2 samples\n")) << text;
  EXPECT_TRUE(contains(text, "GPU 1\n")) << text;
  EXPECT_TRUE(contains(text, fmt::format("{:<14}{:>8}{:>9}{:>9}{:>9}{:>9}{:>9}", "whole", 2, "-", "-", "-", "-", 33)))
      << text;
  EXPECT_EQ(summary_of(""), "");
  for (const char* odd : {"{\"time\":\"2026-11-17T00:00:00.000Z\",\"gpus\":[1,{\"index\":\"x\"}],\"host\":3,"
                          "\"warnings\":[1]}\n",
                          "{\"time\":\"2026-11-17T00:00:00.000Z\"}\n"})
    EXPECT_TRUE(contains(summary_of(odd), "1 samples")) << odd;
}

}  // namespace
}  // namespace brim::monitor
