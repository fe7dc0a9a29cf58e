// SPDX-License-Identifier: Apache-2.0
// What the doctor says of training runs: the loop around the device, and what memory and batch size cost by the plan's
// own predictions.
#pragma once
#include <string>
#include <vector>

#include "jobs/doctor.h"
#include "jobs/doctor_sweep.h"

namespace brim::jobs {

// Evidence and change of a cause that kept the device idle; `idle` says how long.
void describe_train_idle(Finding& finding, const TracedRun& run, const Swept& swept, const std::string& idle);

// What another plan of the same job would bring: `predicted_seconds` of the run, not yet compared with anything.
std::vector<Finding> advise_on_train_plan(const TracedRun& run, const Swept& swept);

// True of the run, whoever is to blame.
std::vector<std::string> train_facts(const TracedRun& run, const Swept& swept);

}  // namespace brim::jobs
