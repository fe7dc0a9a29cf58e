// SPDX-License-Identifier: Apache-2.0
// Findings of the doctor for training runs: the loop around the device, and the cost of memory limits and batch size
// according to the plan's predictions.
#pragma once
#include <string>
#include <vector>

#include "jobs/doctor.h"
#include "jobs/doctor_sweep.h"

namespace brim::jobs {

// Fills in evidence and change for a cause that kept the device idle; `idle` is the duration.
void describe_train_idle(Finding& finding, const RunRecord& run, const TimelineSummary& swept, const std::string& idle);

// Predicts other plans for the same job: `predicted_seconds` of the run, not yet compared with anything.
std::vector<Finding> advise_on_train_plan(const RunRecord& run, const TimelineSummary& swept);

// Observations about the run, independent of the findings.
std::vector<std::string> train_facts(const RunRecord& run, const TimelineSummary& swept);

}  // namespace brim::jobs
