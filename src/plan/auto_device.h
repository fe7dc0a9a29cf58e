// SPDX-License-Identifier: Apache-2.0
// Decides whether `auto` selects the CPU although a GPU is expected: a small input finishes on the CPU before a GPU has
// started. Does not query the GPU, because that takes most of the time to be saved.
#pragma once
#include <cstdint>
#include <optional>
#include <span>

namespace brim::plan {

enum class AutoDevice : uint8_t {
  usual,      // GPU if present
  cpu,        // always the CPU: the run to resume used it
  if_faster,  // CPU if its plan is faster_on_cpu
};

struct AutoFacts {
  bool free = false;             // device, precision and memory limit are all left at their defaults
  bool card_expected = false;    // a driver is present and this build has a backend for it
  int64_t bytes = -1;            // total text size of all inputs; negative if unknown
  std::optional<bool> on_cpu{};  // when resuming: whether the run selected the CPU for this reason
};
AutoDevice auto_device(const AutoFacts& facts);

// Time of a short run on a GPU from process start to end, including loading weights (0.4 s for ten rows of RoBERTa-base
// on an H200, 0.7 s for a thousand), minus the startup time on the CPU (docs/archive/measurements.md).
inline constexpr double kCardStartSeconds = 0.5;

// Predicted time for the whole input from the plans of its models; infinite if a plan has no prediction.
double predicted_seconds(int64_t bytes, std::span<const double> tokens_per_second);
inline bool faster_on_cpu(double seconds) { return seconds < kCardStartSeconds; }

}  // namespace brim::plan
