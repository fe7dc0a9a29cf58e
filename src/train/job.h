// SPDX-License-Identifier: Apache-2.0
// Everything a training run needs, opened and checked before the first step: model, labels, data, plan.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"
#include "hub/hf_config.h"
#include "model/train_state.h"
#include "model/weights.h"
#include "plan/plan.h"
#include "text/tokenizer.h"
#include "train/dataset.h"

namespace brim::train {

const char* token_placement_name(TokenPlacement placement);

struct TrainJob {
  TrainSettings settings;
  TrainTask task = TrainTask::sequence;
  std::unique_ptr<device::Device> device;
  int threads = 1;
  std::filesystem::path model_dir;
  hub::HfConfig config;
  hub::HeadKind head = hub::HeadKind::encoder;  // the one the model came with
  model::ModelShape shape;
  LabelSets labels;  // names the model will have
  std::unique_ptr<text::Tokenizer> tokenizer;
  TrainSet train_set, validation_set;
  int64_t unlabelled = 0;                // training rows that are learnt from teachers alone
  std::vector<float> class_weights;      // empty: none
  std::vector<float> master;             // start values
  std::vector<std::string> new_tensors;  // drawn at random: the new head
  bool replaces_head = false;            // which the model had, for other labels (ignore_mismatched_head)
  int64_t max_length = 0;
  bool tokens_cached = false;  // an earlier run had tokenized the training rows
  ops::Precision precision = ops::Precision::fp32;
  plan::Plan plan;
  memory::PlannedMemory memory;  // the plan's parts, from which everything on the device is drawn
  TokenPlacement token_placement = TokenPlacement::staged;
  std::string precision_reason;
  std::string data_hash;  // of tokens and labels, both sets
};

// What decides on the best model: metric_for_best_model, f1 and its absence being the task's own F1. With both heads
// that is the mean of the two, so that neither is chosen at the other's cost.
std::string best_metric(const TrainSettings& settings, TrainTask task);

// Throws with the right code for everything that is wrong with settings, data or model.
TrainJob open_train_job(const TrainSettings& settings, const std::function<void(const std::string&)>& say);

// (Re)computes job.plan, teachers' bytes included, and reserves its parts; used again when a checkpoint brings its
// own budget (above 0).
void plan_train_job(TrainJob& job, int64_t token_budget, std::optional<model::Recompute> recompute);

// What a plan of this job is asked for, beside a micro-batch that is given. For callers that ask what another limit or
// another batch would bring.
plan::PlanRequest train_plan_request(const TrainJob& job, const plan::DeviceProfile& device, int64_t limit_bytes);

// Decides where the training tokens live, once the plan is final: what it leaves of the limit may hold them. On a CPU
// the mapped file is read directly. Adds to job.plan, changes none of its choices.
void place_token_set(TrainJob& job);
std::string token_placement_text(const TrainJob& job);  // a line for people

}  // namespace brim::train
