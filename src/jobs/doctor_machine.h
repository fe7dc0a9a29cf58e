// SPDX-License-Identifier: Apache-2.0
// What the doctor looks at before a run: would this machine let any run be fast? And a short measurement of two batch
// sizes, for runs whose batches were small.
#pragma once
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

// Driver, clocks and throttling, free memory of card and host, a stray process on the card, cores, load by other
// processes (watched for `seconds`), speed of the disk under `directory`.
std::vector<MachineCheck> check_machine(const std::string& directory, double seconds = 0.5);
std::string to_text(const std::vector<MachineCheck>& checks);

// Runs batches of the run's size and of the size memory allows, on the run's device, for about `seconds` each. Throws
// what Engine::open throws.
BudgetProbe measure_budgets(const TracedRun& record, double seconds = 0.5);

}  // namespace brim::jobs
