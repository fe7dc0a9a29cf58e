// SPDX-License-Identifier: Apache-2.0
// Compares the first 20 losses of every family and head with PyTorch's.
#include <gtest/gtest.h>

#include "train/golden_losses.h"

namespace brim::train {
namespace {

TEST(Losses, FirstTwentyMatchPyTorch) {
  const auto golden = golden_losses();
  ASSERT_GE(golden["losses"].size(), 16u);
  const auto device = device::open_cpu_device(1);
  for (const auto& [name, want] : golden["losses"].items()) {
    SCOPED_TRACE(name);
    const auto losses = losses_of(*device, name, golden, ops::Precision::fp32);
    double worst = 0;
    for (size_t i = 0; i < losses.size(); ++i) {
      worst = std::max(worst, std::abs(losses[i] - want[i].get<double>()) / std::abs(want[i].get<double>()));
      // A loss is a difference of fp32 numbers of magnitude 1 to 10; when it is near zero, only their rounding error
      // remains.
      EXPECT_NEAR(losses[i], want[i].get<double>(), 1e-4 * std::abs(want[i].get<double>()) + 2e-6) << "step " << i;
    }
    RecordProperty("worst_relative_" + name, std::to_string(worst));
    EXPECT_LT(losses.back(), losses.front());
  }
}

}  // namespace
}  // namespace brim::train
