// SPDX-License-Identifier: Apache-2.0
#include "monitor/view.h"

#include <gtest/gtest.h>

#include <string>

namespace brim::monitor {
namespace {

// A snapshot with every reading, and names that could break the layout.
Snapshot full_snapshot(int cards) {
  Snapshot s;
  s.unix_ns = int64_t{1'700'000'000} * 1'000'000'000;
  s.nvml = NvmlState::ready;
  for (int i = 0; i < cards; ++i) {
    GpuSample g;
    g.index = i;
    g.name = i == 0 ? "NVIDIA H200" : std::string(300, 'N');
    g.driver = "580.00.01";
    if (i == 2) {
      g.state = GpuState::lost;
      g.why = "GPU is lost";
    }
    if (i != 1) {
      g.utilization = 0.87;
      g.memory_utilization = 0.31;
      g.total_bytes = int64_t{141} << 30, g.used_bytes = int64_t{20} << 30, g.free_bytes = int64_t{120} << 30,
      g.reserved_bytes = int64_t{1} << 30;
      g.temperature_c = 54;
      g.power_w = 412;
      g.power_limit_w = 700;
      g.sm_clock_mhz = 1755;
      g.max_sm_clock_mhz = 1980;
      g.memory_clock_mhz = 3201;
      g.throttle = std::vector<std::string>{"power cap", "software thermal"};
      g.pcie_generation = 5;
      g.pcie_width = 16;
      g.pcie_rx_bytes_per_s = 1e9;
      g.pcie_tx_bytes_per_s = 2e6;
      g.processes = std::vector<GpuProcess>{{4242, "brim", int64_t{20} << 30},
                                            {7, "\x1b[31m\xFF\xFE日本語の長い名前\n\t", std::nullopt}};
      g.gpm = GpmActivity{0.91, 0.5, 0.44, std::nullopt};
    }
    g.refused = {"PCIe throughput", "processes"};
    s.gpus.push_back(g);
  }
  s.host.cores = 64;
  s.host.cpu = 0.4;
  s.host.core.assign(64, 0.5);
  s.host.cpu_name = std::string(200, 'c');
  s.host.memory_total_bytes = int64_t{128} << 30, s.host.memory_available_bytes = int64_t{100} << 30;
  s.host.swap_total_bytes = int64_t{1} << 30, s.host.swap_used_bytes = 0;
  s.host.disk_total_bytes = int64_t{1} << 40, s.host.disk_free_bytes = int64_t{1} << 39;
  s.host.self_cpu = 0.002;
  RunRecord run;
  run.pid = 4242;
  run.verb = "score";
  run.model = "/models/\xE2\x80";
  run.device = "NVIDIA H200";
  run.on_card = true;
  run.precision = "bf16";
  run.stats.rows = 1'270'480;
  run.stats.tokens = 32'400'000;
  run.stats.seconds = 10;
  run.mfu = 0.459;
  run.device_busy = 0.982;
  run.planned_bytes = int64_t{945} << 20, run.peak_bytes = int64_t{940} << 20, run.limit_bytes = int64_t{6} << 30;
  run.step = 120;
  run.total_steps = 400;
  run.loss = 0.4321;
  for (const char* stage : {"read", "tokenize", "pack", "copy", "compute", "collect", "write"})
    run.stages.emplace_back(stage, 0.5);
  s.runs.push_back(run);
  s.warnings = {"GPU 0: utilisation 95 %, above 90 %"};
  return s;
}

History full_history(const Snapshot& s) {
  History history;
  for (int i = 0; i < 600; ++i) history.add(s);
  return history;
}

TEST(View, FitsAnyWindow) {
  for (const int cards : {0, 1, 3, 8}) {
    const Snapshot s = full_snapshot(cards);
    const History history = full_history(s);
    for (const int width : {1, 10, 40, 80, 200, 500})
      for (const int height : {0, 1, 2, 5, 24, 60})
        for (const bool color : {false, true}) {
          const auto lines = render(s, history, {width, height, color, 1});
          ASSERT_FALSE(lines.empty());
          ASSERT_TRUE(height == 0 || lines.size() <= static_cast<size_t>(height));
          for (const auto& line : lines) {
            ASSERT_LE(display_width(line), width) << line;
            ASSERT_EQ(line.find('\n'), std::string::npos);
            ASSERT_TRUE(color || line.find('\x1b') == std::string::npos);
          }
        }
  }
}

std::string all(const std::vector<std::string>& lines) {
  std::string text;
  for (const auto& line : lines) text += line + "\n";
  return text;
}

TEST(View, ShowsUtilisationMemoryAndMfuSeparately) {
  const Snapshot s = full_snapshot(1);
  const std::string text = all(render(s, full_history(s), {200, 60, false, 1}));
  for (const char* part : {"utilisation",
                           "87 %",
                           "20.0 GiB of 141 GiB",
                           "MFU",
                           "45.9 %",
                           "54 °C",
                           "412 of 700 W",
                           "1755 of 1980 MHz",
                           "power cap",
                           "gen 5 ×16",
                           "tensor 44 %",
                           "DRAM not available",
                           "4242",
                           "127,048 rows/s",
                           "3.24 M tokens/s",
                           "busy 98 %",
                           "940 MiB of 945 MiB planned",
                           "tokenize 50 %",
                           "step 120 of 400",
                           "warning: GPU 0",
                           "memory not available",
                           "▇"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
}

TEST(View, ShowsTheHostWithoutAGpu) {
  Snapshot s = full_snapshot(0);
  s.nvml = NvmlState::no_library;
  s.nvml_why = "no NVIDIA driver";
  const std::string text = all(render(s, History(), {80, 24, false, 0}));
  EXPECT_NE(text.find("no NVIDIA driver"), std::string::npos);
  EXPECT_NE(text.find("CPU"), std::string::npos);
}

TEST(View, ShortensALongPathToFitDeviceAndTime) {
  Snapshot s = full_snapshot(0);
  s.runs.resize(1);
  s.runs[0].model = "/home/somebody/a/long/way/to/models/minilm-l6";
  s.runs[0].device = "cpu (amx, 2 threads)";
  s.runs[0].on_card = false;
  s.runs[0].precision = "fp32";
  s.runs[0].start_unix_ns = s.unix_ns - 6'000'000'000;
  const std::string narrow = all(render(s, History(), {80, 24, false, 0})),
                    wide = all(render(s, History(), {140, 24, false, 0}));
  EXPECT_NE(narrow.find("…/minilm-l6  cpu (amx, 2 threads) in fp32"), std::string::npos) << narrow;
  EXPECT_NE(narrow.find("6.0 s"), std::string::npos) << narrow;
  EXPECT_NE(wide.find("/home/somebody/a/long/way/to/models/minilm-l6  cpu"), std::string::npos) << wide;
}

TEST(View, ShowsFullMemoryTextInEightyColumns) {
  Snapshot s = full_snapshot(1);
  s.gpus[0].used_bytes = int64_t{1000} << 20;
  s.gpus[0].total_bytes = int64_t{8000} << 20;
  s.gpus[0].free_bytes = int64_t{6400} << 20;
  s.gpus[0].reserved_bytes = int64_t{600} << 20;
  EXPECT_NE(
      all(render(s, full_history(s), {80, 24, false, 1})).find("1000 MiB of 7.81 GiB, 6.25 GiB free, 600 MiB reserved"),
      std::string::npos);
}

// A training run on a CPU, with long values.
TEST(View, ShowsProgressTimeLeftAndLimitInEightyColumns) {
  Snapshot s = full_snapshot(0);
  RunRecord& run = s.runs[0];
  run.verb = "train";
  run.device = "cpu (amx, 2 threads)";
  run.on_card = false;
  run.stats.rows = 12;
  run.stats.tokens = 1054;
  run.stats.seconds = 10;
  run.step = 12'000;
  run.total_steps = 40'000;
  run.seconds_left = 250;
  run.mfu_of_data_sheet = true;
  run.planned_bytes = int64_t{1000} << 20, run.peak_bytes = int64_t{1001} << 20, run.limit_bytes = int64_t{1002} << 20;
  const auto lines = render(s, full_history(s), {80, 24, false, 1});
  const std::string text = all(lines);
  for (const char* part :
       {"30 %, 4m 10s left, step 12,000 of 40,000, loss 0.4321\n",
        "1000 MiB planned, process 1001 MiB, limit 1002 MiB\n", "1 row/s, 105 tokens/s, MFU 45.9 %, busy 98 %"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  run.seconds_left.reset();
  EXPECT_EQ(all(render(s, full_history(s), {80, 24, false, 1})).find(" left"), std::string::npos);
}

TEST(View, ReportsALostGpuAndMissingReadings) {
  const Snapshot s = full_snapshot(3);
  const std::string text = all(render(s, History(), {120, 0, false, 0}));
  EXPECT_NE(text.find("lost"), std::string::npos);
  EXPECT_NE(text.find("not available"), std::string::npos);
  EXPECT_EQ(text.find(" 0 %"), std::string::npos);
}

TEST(View, KeepsTheMostImportantLinesInASmallWindow) {
  const Snapshot s = full_snapshot(1);
  const auto lines = render(s, full_history(s), {80, 10, false, 1});
  const std::string text = all(lines);
  for (const char* part : {"brim monitor", "GPU 0", "utilisation", "warning", "more lines"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
}

}  // namespace
}  // namespace brim::monitor
