// SPDX-License-Identifier: Apache-2.0
#include "serve/gpu_readings.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace brim::serve {
namespace {

monitor::GpuSample busy_gpu() {
  monitor::GpuSample gpu;
  gpu.utilization = 0.45;
  gpu.total_bytes = int64_t{12'288} << 20;
  gpu.used_bytes = int64_t{11'690} << 20;
  gpu.temperature_c = 61;
  gpu.power_w = 88.4;
  return gpu;
}

TEST(GpuReadings, LogLineHasTheAvailableReadings) {
  EXPECT_EQ(log_line(busy_gpu()), "GPU 0: 45 % utilisation, 11690 of 12288 MiB (95.1 %), 61 °C, 88 W");
  monitor::GpuSample gpu;
  gpu.index = 1;
  EXPECT_EQ(log_line(gpu), "GPU 1: no readings");
  gpu.state = monitor::GpuState::lost;
  gpu.why = "fell off the bus";
  EXPECT_EQ(log_line(gpu), "GPU 1: fell off the bus");
}

TEST(GpuReadings, HighMemoryShareWarnsAndStaysHealthy) {
  monitor::Watch watch({});
  watch.check({busy_gpu()});
  const GpuReadings readings = readings_of({busy_gpu()}, watch, true, {}, std::nullopt);
  ASSERT_EQ(readings.warnings.size(), 1u);
  EXPECT_EQ(readings.warnings[0].text, "GPU 0: 95.1 % of memory in use, above 95 %");
  EXPECT_FALSE(readings.warnings[0].degrades);
  const auto block = nlohmann::json::parse(readings.health_json);
  EXPECT_EQ(block["healthy"], true);
  EXPECT_EQ(block["warnings"][0], readings.warnings[0].text);
}

}  // namespace
}  // namespace brim::serve
