// SPDX-License-Identifier: Apache-2.0
#include "plan/auto_device.h"

#include <limits>

namespace brim::plan {
namespace {

// Above this size no CPU finishes earlier with any model, so opening the model there first would only cost time.
constexpr int64_t kMostBytes = 256 << 10;
constexpr double kBytesPerToken = 3;  // lower than in most texts, so the token count is overestimated

}  // namespace

AutoDevice auto_device(const AutoFacts& facts) {
  if (!facts.free || !facts.card_expected) return AutoDevice::usual;
  if (facts.on_cpu) return *facts.on_cpu ? AutoDevice::cpu : AutoDevice::usual;
  return facts.bytes >= 0 && facts.bytes <= kMostBytes ? AutoDevice::if_faster : AutoDevice::usual;
}

double predicted_seconds(int64_t bytes, std::span<const double> tokens_per_second) {
  double seconds = 0;
  for (const double rate : tokens_per_second)
    seconds += rate > 0 ? static_cast<double>(bytes) / kBytesPerToken / rate : std::numeric_limits<double>::infinity();
  return seconds;
}

}  // namespace brim::plan
