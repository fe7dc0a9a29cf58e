// SPDX-License-Identifier: Apache-2.0
// Checks the machine before a run for anything that would slow it down, and measures two batch sizes for runs with
// small batches.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "jobs/doctor.h"

namespace brim::jobs {

struct MachineCheck {
  enum class State { fine, notice, problem };
  State state = State::fine;
  std::string what, found, advice;  // advice: empty if fine
};
const char* check_state_name(MachineCheck::State state);

// Checks for WSL2, where the driver moves GPU memory to system memory instead of failing. `kernel` is the release of
// the kernel; no checks on other systems.
std::vector<MachineCheck> check_wsl(const std::string& kernel, std::optional<int64_t> gpu_free,
                                    std::optional<int64_t> gpu_total);

// Checks driver, clocks and throttling, free memory of GPU and host, stray processes on the GPU, cores, load by other
// processes (sampled for `seconds`), and disk speed under `directory`.
std::vector<MachineCheck> check_machine(const std::string& directory, double seconds = 0.5);
std::string to_text(const std::vector<MachineCheck>& checks);

// Runs batches of the run's size and of the size that memory allows, on the run's device, for about `seconds` each.
// Throws the same errors as Scorer::open.
BudgetProbe measure_budgets(const RunRecord& record, double seconds = 0.5);

}  // namespace brim::jobs
