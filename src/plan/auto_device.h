// SPDX-License-Identifier: Apache-2.0
// Whether `auto` is the CPU although a card is expected: a small input is done there before a card has started. Decided
// without asking the card, because asking takes most of the time that is to be saved.
#pragma once
#include <cstdint>
#include <optional>
#include <span>

namespace brim::plan {

enum class AutoDevice : uint8_t {
  usual,    // the card where there is one
  cpu,      // whatever it takes: the run that is resumed was there
  if_soon,  // the CPU, where its plan is sooner_on_cpu
};

struct AutoFacts {
  bool free = false;             // device, precision and memory limit are all left to Brim
  bool card_expected = false;    // a driver is here and this build has a backend for it
  int64_t bytes = -1;            // of text, all inputs; negative: unknown
  std::optional<bool> on_cpu{};  // of a run that is resumed: whether it took the CPU for this reason
};
AutoDevice auto_device(const AutoFacts& facts);

// What a short run on a card takes from the process's start to its end, weights included: 0.4 s for ten rows of
// RoBERTa-base on an H200, 0.7 s for a thousand; less what one on the cores takes before a row (docs/measurements.md).
inline constexpr double kCardStartSeconds = 0.5;

// Of the whole input, by what the plans of its models predict; infinite where one predicts nothing.
double predicted_seconds(int64_t bytes, std::span<const double> tokens_per_second);
inline bool sooner_on_cpu(double seconds) { return seconds < kCardStartSeconds; }

}  // namespace brim::plan
