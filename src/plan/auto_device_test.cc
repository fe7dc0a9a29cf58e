// SPDX-License-Identifier: Apache-2.0
#include "plan/auto_device.h"

#include <gtest/gtest.h>

#include <vector>

namespace brim::plan {
namespace {

TEST(AutoDevice, SelectsCpuForSmallInputsAndKeepsItOnResume) {
  constexpr int64_t kSmall = 1000, kLarge = 100 << 20;
  const std::optional<bool> none;
  const struct {
    const char* what;
    AutoFacts facts;
    AutoDevice want;
  } cases[] = {
      {"a few rows", {true, true, kSmall, none}, AutoDevice::if_faster},
      {"an empty file", {true, true, 0, none}, AutoDevice::if_faster},
      {"a large file", {true, true, kLarge, none}, AutoDevice::usual},
      {"a pipe", {true, true, -1, none}, AutoDevice::usual},
      {"asked for", {false, true, kSmall, none}, AutoDevice::usual},
      {"no card", {true, false, kSmall, none}, AutoDevice::usual},
      {"resumed, on the CPU then", {true, true, kLarge, true}, AutoDevice::cpu},
      {"resumed, on the card then", {true, true, kSmall, false}, AutoDevice::usual},
      {"resumed, asked for now", {false, true, kSmall, true}, AutoDevice::usual},
  };
  for (const auto& c : cases) EXPECT_EQ(auto_device(c.facts), c.want) << c.what;
}

TEST(AutoDevice, SelectsCpuUpToTheGpuStartupTime) {
  const std::vector<double> one = {20000}, two = {20000, 2000}, unknown = {20000, 0}, none;
  EXPECT_DOUBLE_EQ(predicted_seconds(6000, one), 0.1);
  EXPECT_DOUBLE_EQ(predicted_seconds(6000, two), 1.1);
  EXPECT_TRUE(faster_on_cpu(predicted_seconds(6000, one)));
  EXPECT_FALSE(faster_on_cpu(predicted_seconds(6000, two)));
  EXPECT_FALSE(faster_on_cpu(predicted_seconds(60000, one)));
  EXPECT_FALSE(faster_on_cpu(predicted_seconds(0, unknown))) << "no prediction";
  EXPECT_TRUE(faster_on_cpu(predicted_seconds(60000, none))) << "VADER needs no device";
}

}  // namespace
}  // namespace brim::plan
