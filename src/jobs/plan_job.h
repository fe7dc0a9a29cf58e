// SPDX-License-Identifier: Apache-2.0
// Inputs of a memory plan: a model, its settings and a device, which need not be present. The plans are computed in
// src/plan.
#pragma once
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "brim/options.h"
#include "device/device.h"
#include "hub/gliner_config.h"
#include "hub/hf_config.h"
#include "plan/plan.h"
#include "train/settings.h"

namespace brim::jobs {

inline constexpr int kPlanSchema = 1;

// A GPU that is described by the user.
struct CustomCard {
  int64_t bytes = 0;
  double tflops = 0, gigabytes_per_second = 0;
};

struct PlanSpec {
  plan::Task task = plan::Task::score;
  std::string config;                                        // YAML file of training settings
  std::string adapter;                                       // LoRA adapter of the model; empty: none
  std::map<std::string, std::vector<std::string>> settings;  // from training's table
  int64_t typical_length = 0;                                // 0: at most 128
  std::optional<ZeroShot> zero_shot;
  std::optional<EntityLabels> entities;
  bool several = false;  // zero-shot labels are for the NLI models among several, entities for the GLiNER models
  std::string device;    // a GPU's name or a local device; empty: that of the settings
  std::optional<CustomCard> card;
  int threads = 0;
  bool measure = false;  // measure the CPU
};

// A model to plan, before a device is chosen.
struct PlanJob {
  std::filesystem::path dir, adapter;
  hub::HfConfig config;
  plan::PlanRequest request;
  train::TrainSettings settings;                     // defaults, the YAML file's values, the given values
  bool rules = false;                                // VADER: uses no device memory
  int64_t pairs_per_text = 1;                        // zero-shot labels
  std::optional<hub::GlinerConfig> gliner;           // its encoder of texts
  std::optional<size_t> entity_labels;               // GLiNER: labels per text, if known
  bool has_head = true;                              // false: the plan assumes one
  std::vector<PlanJob> teachers;                     // models that score the training texts before training
  std::optional<model::AdapterRanks> adapter_ranks;  // if the weights of its base can be shared
  std::vector<std::string> notes;
  std::string served_as;  // name in a serve.yaml
  std::string name() const { return !served_as.empty() ? served_as : rules ? "vader" : dir.filename().string(); }
};

// Notes about the YAML file are logged only if `first`.
PlanJob open_job(const PlanSpec& spec, const std::string& model, bool first);
// The encoder of labels of a GLiNER bi-encoder, planned together with its encoder of texts; nullopt for other models.
std::optional<PlanJob> labels_job(const PlanJob& texts);

struct PlanTarget {
  plan::DeviceProfile profile;
  device::MemoryInfo memory;
  std::unique_ptr<device::Device> device;  // only if it is in this machine
  std::vector<std::string> notes;
};

// A GPU's name or the local device, which may also come from a settings file.
std::string device_of(const PlanSpec& spec, const PlanJob& job);
PlanTarget open_target(const PlanSpec& spec, const std::string& name);
plan::PlanRequest request_for(const PlanJob& job, const PlanTarget& t);
// Plans of the teachers' passes, which run one after another before training (`training`: its request). Throws
// does_not_fit with the teacher's name.
std::vector<plan::Plan> teacher_plans(const PlanJob& job, const plan::PlanRequest& training, const PlanTarget& t);
// Texts in the largest batch (for training: micro-batch) that fits, whether or not it is faster.
int64_t largest_batch(const PlanJob& job, plan::PlanRequest r);

struct BatchAndRate {
  int64_t texts = 0, tokens = 0;
  double rate = 0;
};
BatchAndRate training_batch(const PlanJob& job);

// Memory that `auto` leaves free for other processes
std::vector<std::string> notes_on_limit(const train::TrainSettings& s);
int64_t texts_of(const PlanJob& job, int64_t tokens);

nlohmann::ordered_json json_of(const PlanJob& job, const plan::Plan& p);
nlohmann::ordered_json unfit_json(const std::string& device, const plan::PlanRequest& r);
// The plan with one GiB more or less; empty if the device has no such limit or nothing fits.
std::optional<plan::Plan> neighbouring(plan::PlanRequest r, int64_t change);
// The plan of one model as JSON, with its neighbours.
nlohmann::ordered_json described_plan(const PlanJob& job, const plan::PlanRequest& r, plan::Plan p);

}  // namespace brim::jobs
