// SPDX-License-Identifier: Apache-2.0
// The doctor: why was the device idle, and what would it bring to change that? Every moment in which the device had
// nothing to do is charged to the stage that kept it waiting; what a change brings is read off the other stages, since
// no run can end before its slowest part has.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "jobs/doctor_trace.h"

namespace brim::jobs {

// X(enumerator, name). `startup` is the time the first chunk needs to reach the device and the last to leave it:
// charged, never advised upon.
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
std::string percent(double share);  // "97 %" of 0.97
std::optional<Cause> cause_from_name(const std::string& name);

// A setting of the command and the value it should have; `brim doctor apply=FILE` writes it as BRIM_….
struct SettingChange {
  std::string name, value;  // "tokenizer_threads", "6"; an empty value: the variable must not be set
  std::string variable() const;
  bool operator==(const SettingChange&) const = default;
};

struct Finding {
  Cause cause = Cause::startup;
  double idle_seconds = 0;       // device idle charged to it; 0 for what makes a busy device slow
  double predicted_seconds = 0;  // of the run without it
  double gain = 0;               // share of the run's time saved
  std::string evidence, change;
  std::vector<SettingChange> settings;  // empty: nothing Brim could set
  bool operator==(const Finding&) const = default;
};

struct Diagnosis {
  double seconds = 0, busy_seconds = 0, idle_seconds = 0;
  std::array<double, static_cast<size_t>(Cause::count)> idle = {};  // seconds of idle_seconds by cause
  double attributed() const;       // share of idle_seconds with a cause; 1 if there is none
  std::vector<Finding> findings;   // worth at least kWorthwhile, largest gain first
  std::vector<std::string> facts;  // true of the run, and nothing that a change would gain
  std::string verdict;             // one sentence
  bool nothing_to_gain() const { return findings.empty(); }
  bool operator==(const Diagnosis&) const = default;
};

constexpr double kShort = 0.1;        // seconds; a shorter run is judged, with a note that it was short
constexpr double kWorthwhile = 0.03;  // of the run's time; less is noise from one run to the next

// Speed of two batch sizes, measured on the device that ran. Without it the plan's own prediction is used.
struct BudgetProbe {
  double tokens_per_second = 0, free_tokens_per_second = 0;
};
// Whether the run's batches were far smaller than memory allows, so that measuring would tell something.
bool wants_probe(const RunTrace& trace);

Diagnosis diagnose(const RunTrace& trace, const std::optional<BudgetProbe>& probe = std::nullopt);

std::string to_text(const Diagnosis& diagnosis);
std::string to_json(const Diagnosis& diagnosis);
Diagnosis diagnosis_from_json(const std::string& json);  // throws bad_data

// Settings of all findings as lines of an --env-file, each under the reason for it.
std::string to_env_file(const Diagnosis& diagnosis);

}  // namespace brim::jobs
