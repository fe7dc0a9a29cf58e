// SPDX-License-Identifier: Apache-2.0
// Diagnoses why the device was idle and predicts the gain of each fix. Idle time is attributed to the stage that kept
// the device waiting; gains are derived from the other stages, because no run can be shorter than its slowest stage.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "jobs/doctor_trace.h"

namespace brim::jobs {

// X(enumerator, name). `startup` is the time until the first chunk reaches the device and after the last leaves it:
// attributed, but never a finding.
// clang-format off
#define BRIM_CAUSES(X) \
  X(reader, "reader") \
  X(tokenizer, "tokenizer") \
  X(packer, "packer") \
  X(copy, "copy") \
  X(launch, "launch") \
  X(writer, "writer") \
  X(sync, "sync") \
  X(evaluation, "evaluation") \
  X(small_batch, "small batches") \
  X(throttle, "clock or power throttle") \
  X(memory, "memory pressure") \
  X(other_process, "another process") \
  X(unused_cores, "unused cores") \
  X(startup, "start and end of the run")
// clang-format on

enum class Cause : uint8_t {
#define BRIM_CAUSE_ENUM(id, name) id,
  BRIM_CAUSES(BRIM_CAUSE_ENUM)
#undef BRIM_CAUSE_ENUM
      count
};
const char* cause_name(Cause cause);
std::string percent(double share);  // 0.97 as "97 %"
std::optional<Cause> cause_from_name(const std::string& name);

// A setting of the command and its recommended value; `brim doctor apply=FILE` writes it as BRIM_….
struct SettingChange {
  std::string name, value;  // "tokenizer_threads", "6"; empty value: the variable must be unset
  std::string variable() const;
  bool operator==(const SettingChange&) const = default;
};

struct Finding {
  Cause cause = Cause::startup;
  double idle_seconds = 0;       // idle device time attributed to it; 0 for causes that slow down a busy device
  double predicted_seconds = 0;  // predicted run time without it
  double gain = 0;               // share of the run's time saved
  std::string evidence, change;
  std::vector<SettingChange> settings;  // empty if no setting can change it
  bool operator==(const Finding&) const = default;
};

struct Diagnosis {
  double seconds = 0, busy_seconds = 0, idle_seconds = 0;
  std::array<double, static_cast<size_t>(Cause::count)> idle = {};  // idle_seconds by cause
  double attributed() const;       // share of idle_seconds with a known cause; 1 if there is no idle time
  std::vector<Finding> findings;   // gains of at least kWorthwhile, largest first
  std::vector<std::string> facts;  // observations without a predicted gain
  std::string verdict;             // one sentence
  bool nothing_to_gain() const { return findings.empty(); }
  bool operator==(const Diagnosis&) const = default;
};

constexpr double kShort = 0.1;        // seconds; shorter runs are diagnosed with a note
constexpr double kWorthwhile = 0.03;  // share of the run time; smaller gains are noise between runs

// Speed of two batch sizes, measured on the run's device. Without it the plan's prediction is used.
struct BudgetProbe {
  double tokens_per_second = 0, free_tokens_per_second = 0;
};
// Whether the batches were far smaller than memory allows, so that a measurement is useful.
bool wants_probe(const RunTrace& trace);

Diagnosis diagnose(const RunTrace& trace, const std::optional<BudgetProbe>& probe = std::nullopt);

std::string to_text(const Diagnosis& diagnosis);
std::string to_json(const Diagnosis& diagnosis);
Diagnosis diagnosis_from_json(const std::string& json);  // throws bad_data

// Settings of all findings as lines of an --env-file, each with its reason as a comment.
std::string to_env_file(const Diagnosis& diagnosis);

}  // namespace brim::jobs
