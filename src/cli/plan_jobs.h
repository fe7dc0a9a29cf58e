// SPDX-License-Identifier: Apache-2.0
// Inputs of `brim plan` from its flags: models, target device and common output. The plans are computed in src/plan.
#pragma once
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/setting_flags.h"
#include "cli/zero_shot_flags.h"
#include "device/device.h"
#include "hub/hf_config.h"
#include "plan/plan.h"
#include "train/settings.h"

namespace brim::cli {

inline constexpr int kPlanSchema = 1;

struct PlanFlags {
  std::vector<std::string> models;
  std::string task, device, vram, config, serve, adapter;
  double tflops = 0, bandwidth = 0;
  int64_t typical_length = 0;
  int threads = 0;
  bool json = false, measure = false, serves = false;
  ZeroShotFlags zero_shot;
  FlagValues settings;  // from training's table
  FlagValues forecast;  // from forecasting's table, keys of its own
};

// A model to plan, before a device is chosen.
struct PlanJob {
  std::filesystem::path dir, adapter;
  hub::HfConfig config;
  plan::PlanRequest request;
  train::TrainSettings settings;                     // defaults, the YAML file's values, the flags' values
  bool rules = false;                                // VADER: uses no device memory
  int64_t pairs_per_text = 1;                        // zero-shot labels
  std::optional<model::AdapterRanks> adapter_ranks;  // if the weights of its base can be shared
  std::vector<std::string> notes;
  std::string served_as;  // name in a serve.yaml
  std::string name() const { return !served_as.empty() ? served_as : rules ? "vader" : dir.filename().string(); }
};

// A file of training settings implies training.
plan::Task asked_task(const PlanFlags& f);
// Applies the flags to `model`; notes about the file are logged only for the first job.
PlanJob open_job(const PlanFlags& f, const std::string& model, bool first);

struct PlanTarget {
  plan::DeviceProfile profile;
  device::MemoryInfo memory;
  std::unique_ptr<device::Device> device;  // only if it is in this machine
  std::vector<std::string> notes;
};

// A GPU's name, `all`, or the local device, which may also come from a settings file.
std::string device_of(const PlanFlags& f, const PlanJob& job);
PlanTarget open_target(const PlanFlags& f, const std::string& name);
plan::PlanRequest request_for(const PlanJob& job, const PlanTarget& t);
// Texts in the largest batch (for training: micro-batch) that fits, whether or not it is faster.
int64_t largest_batch(const PlanJob& job, plan::PlanRequest r);

struct BatchAndRate {
  int64_t texts = 0, tokens = 0;
  double rate = 0;
};
BatchAndRate training_batch(const PlanJob& job);

// Memory that `auto` leaves free for other processes
std::vector<std::string> notes_on_limit(const train::TrainSettings& s);
plan::Plan in_flags(plan::Plan p);                        // renders messages for the command line
std::string text_of(const nlohmann::ordered_json& json);  // paths may contain any bytes
nlohmann::ordered_json json_of(const PlanJob& job, const plan::Plan& p);
int64_t texts_of(const PlanJob& job, int64_t tokens);
std::string device_line(const plan::DeviceProfile& d);

// Models that share a device: `jobs`, or those of a serve.yaml or the environment.
int run_several(const PlanFlags& f, const std::vector<PlanJob>& jobs);
int plan_serve(PlanFlags f);

}  // namespace brim::cli
