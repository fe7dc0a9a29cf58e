// SPDX-License-Identifier: Apache-2.0
// Flags of `brim plan` and common output. The inputs of a plan are in jobs/plan_job.h.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/entity_flags.h"
#include "cli/setting_flags.h"
#include "cli/zero_shot_flags.h"
#include "jobs/plan_job.h"

namespace brim::cli {

struct PlanFlags {
  std::vector<std::string> models;
  std::string task, device, vram, config, serve, adapter;
  double tflops = 0, bandwidth = 0;
  int64_t typical_length = 0;
  int threads = 0;
  bool json = false, measure = false, serves = false;
  ZeroShotFlags zero_shot;
  EntityFlags entities;
  FlagValues settings;  // from training's table
  FlagValues forecast;  // from forecasting's table, keys of its own
};

// A file of training settings implies training.
plan::Task asked_task(const PlanFlags& f);
jobs::PlanSpec spec_of(const PlanFlags& f);

// Messages for the command line.
std::vector<std::string> in_flags(std::vector<std::string> lines);
plan::Plan in_flags(plan::Plan p);
std::string text_of(const nlohmann::ordered_json& json);  // paths may contain any bytes
std::string device_line(const plan::DeviceProfile& d);

// Models that share a device: `jobs`, or those of a serve.yaml or the environment.
int run_several(const PlanFlags& f, const std::vector<jobs::PlanJob>& jobs);
int plan_serve(PlanFlags f);

}  // namespace brim::cli
