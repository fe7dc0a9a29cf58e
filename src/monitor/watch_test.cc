// SPDX-License-Identifier: Apache-2.0
#include "monitor/watch.h"

#include <gtest/gtest.h>

namespace brim::monitor {
namespace {

std::vector<GpuSample> one(std::optional<double> utilization, std::optional<double> temperature = {},
                           std::optional<int64_t> free_mib = {}) {
  GpuSample g;
  g.utilization = utilization;
  g.temperature_c = temperature;
  if (free_mib) g.free_bytes = *free_mib << 20;
  return {g};
}

TEST(Watch, WarnsAgainOnlyAfterFallingBack) {
  Watch watch({90, 0, 0});
  EXPECT_TRUE(watch.check(one(0.90)).empty());  // at the limit is within it
  EXPECT_EQ(watch.check(one(0.95)).size(), 1U);
  EXPECT_TRUE(watch.check(one(0.99)).empty());
  EXPECT_TRUE(watch.check(one(0.87)).empty());  // below, but within the margin
  EXPECT_TRUE(watch.active().empty()) << "87 % is not above 90 %";
  EXPECT_TRUE(watch.check(one(0.95)).empty());
  EXPECT_EQ(watch.active(), (std::vector<std::string>{"GPU 0: utilisation 95 %, above 90 %"}));
  EXPECT_FALSE(watch.faulty()) << "high utilisation";
  EXPECT_TRUE(watch.check(one({})).empty());  // unavailable: no change
  EXPECT_TRUE(watch.check(one(0.95)).empty());
  EXPECT_TRUE(watch.check(one(0.80)).empty());
  EXPECT_TRUE(watch.active().empty());
  const auto again = watch.check(one(0.91));
  ASSERT_EQ(again.size(), 1U);
  EXPECT_EQ(again[0], "GPU 0: utilisation 91 %, above 90 %");
}

TEST(Watch, WarnsAboutTemperatureMemoryAndALostGpu) {
  Watch watch({0, 85, 500});
  EXPECT_TRUE(watch.check(one(1.0, 85.0, 500)).empty());
  EXPECT_EQ(watch.check(one(1.0, 86.0, 499)).size(), 2U);
  EXPECT_EQ(watch.active().size(), 2U);
  EXPECT_TRUE(watch.faulty());
  EXPECT_TRUE(watch.check(one(1.0, 83.0, 540)).empty());  // within both limits, but inside the margin
  EXPECT_TRUE(watch.active().empty());
  EXPECT_TRUE(watch.check(one(1.0, 86.0, 499)).empty());
  EXPECT_TRUE(watch.check(one(1.0, 81.0, 560)).empty());
  EXPECT_TRUE(watch.active().empty());
  EXPECT_FALSE(watch.faulty());
  auto gone = one({});
  gone[0].state = GpuState::lost;
  EXPECT_EQ(watch.check(gone).size(), 1U);
  EXPECT_TRUE(watch.check(gone).empty());
  EXPECT_TRUE(watch.check(one(0.1)).empty());
  EXPECT_EQ(watch.check(gone).size(), 1U);
}

TEST(Watch, WarnsAboutTheShareOfUsedMemory) {
  Watch watch({});
  auto gpu = one(0.1, 40.0, 12'288 - 11'690);
  gpu[0].total_bytes = int64_t{12'288} << 20;
  gpu[0].used_bytes = int64_t{11'690} << 20;
  EXPECT_EQ(watch.check(gpu), (std::vector<std::string>{"GPU 0: 95.1 % of memory in use, above 95 %"}));
  EXPECT_FALSE(watch.faulty()) << "a plan may use nearly all memory";
  gpu[0].used_bytes = int64_t{11'600} << 20;
  EXPECT_TRUE(watch.check(gpu).empty());
  EXPECT_TRUE(watch.active().empty()) << "94.4 %";
  gpu[0].used_bytes = int64_t{11'690} << 20;
  EXPECT_TRUE(watch.check(gpu).empty()) << "within the margin";
  EXPECT_EQ(watch.active().size(), 1U);
  Watch off({.max_memory_percent = 0});
  EXPECT_TRUE(off.check(gpu).empty());
}

}  // namespace
}  // namespace brim::monitor
