// SPDX-License-Identifier: Apache-2.0
// Opens and checks everything a training run needs before the first step: model, labels, data, plan. Does not run any
// step.
#pragma once
#include <string>
#include <vector>

#include "model/train_state.h"
#include "model/weights.h"
#include "plan/plan.h"
#include "train/train_data.h"

namespace brim::train {

const char* token_placement_name(TokenPlacement placement);

// The task and its rows are read first and do not change afterwards.
struct TrainJob : TaskSpec, TrainData {
  SoftLabels soft;                       // one per training row; empty without teachers
  std::string review_json;               // JSON of review_student(), set at the end
  std::vector<float> master;             // initial values
  std::string base_hash;                 // LoRA: hash of the frozen values
  std::vector<std::string> new_tensors;  // randomly initialized: the new head
  bool replaces_head = false;            // the model's head does not fit the labels (ignore_mismatched_head)
  ops::Precision precision = ops::Precision::fp32;
  std::string precision_reason;
  plan::Plan plan;
  memory::PlannedMemory memory;  // the plan's reservations; all device memory comes from here
  TokenPlacement token_placement = TokenPlacement::staged;
};

// Reports that the plan recomputes although gradient_checkpointing is false; empty if it does not.
std::string recompute_note(const TrainSettings& settings, const plan::Plan& plan);

// Throws an Error with the matching code for any problem with settings, data or model.
// Teachers score the training texts here.
TrainJob open_train_job(const TrainSettings& settings, const PassProgress& progress);

// (Re)computes job.plan and reserves its parts. Called again if a checkpoint has its
// own token budget (above 0).
void plan_train_job(TrainJob& job, int64_t token_budget, std::optional<model::Recompute> recompute);

// Planner request for this job, without a fixed micro-batch. For callers that compare other limits or batch sizes.
plan::PlanRequest train_plan_request(const TrainJob& job, const plan::DeviceProfile& device, int64_t limit_bytes);

// Decides where to keep the training tokens once the plan is final: in the unused part of the memory limit, if they
// fit. On a CPU, the mapped file is read directly. Adds to job.plan without changing its other choices.
void place_token_set(TrainJob& job);
std::string token_placement_text(const TrainJob& job);  // for display

}  // namespace brim::train
