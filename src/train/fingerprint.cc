// SPDX-License-Identifier: Apache-2.0
#include "train/fingerprint.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "train/job.h"

namespace brim::train {

namespace {

constexpr const char* kAdapterConfigKey = "adapter_config";

// The parts of an adapter's config that determine the result: the directory may be edited between two runs.
nlohmann::ordered_json facts_of(const hub::LoraConfig& lora) {
  return {{"r", lora.rank},
          {"lora_alpha", lora.alpha},
          {"lora_dropout", lora.dropout},
          {"use_rslora", lora.by_root},
          {"target_modules", lora.targets},
          {"rank_pattern", lora.ranks},
          {"alpha_pattern", lora.alphas}};
}

}  // namespace

std::string run_fingerprint(const TrainJob& job) {
  const TrainSettings& s = job.settings;
  nlohmann::ordered_json j = {{"data", job.data_hash},
                              {"precision", precision_name(job.precision)},
                              {"optimizer", optimizer_name(job.plan.optimizer)},
                              {"device", device_kind_name(job.device->kind())},
                              {"layers", job.shape.layers},
                              {"labels", job.labels.sequence},
                              {"tags", job.labels.token}};
  if (!job.base_hash.empty()) j["base"] = job.base_hash;
  for (const KeptSetting& kept : train_settings().kept(s))
    if (kept.keep == Keep::same) j[kept.name] = kept.value;
  if (!s.adapter.empty()) j[kAdapterConfigKey] = facts_of(job.shape.lora);
  auto teachers = nlohmann::ordered_json::array();
  for (const Teacher& teacher : job.teachers) teachers.push_back(teacher.weights_hash);  // by content, not by path
  if (!teachers.empty()) j["teacher_weights"] = teachers.size() == 1 ? teachers[0] : teachers;
  if (!s.teacher_weights.empty()) j["teacher_weight"] = s.teacher_weights;
  for (const Teacher& teacher : job.teachers)
    if (teacher.zero_shot) j["template"] = teacher.zero_shot->text_template;
  return j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string fingerprint_difference(const std::string& then, const std::string& now) {
  const auto a = nlohmann::json::parse(then), b = nlohmann::json::parse(now);
  std::string text;
  for (const auto& [key, value] : b.items()) {
    if (key == kAdapterConfigKey && !a.contains(key)) continue;  // missing in checkpoints of earlier versions
    if (!a.contains(key) || a[key] != value)
      text += fmt::format("\n  {}: was {}, now {}", key, a.contains(key) ? a[key].dump() : "unknown", value.dump());
  }
  for (const auto& [key, value] : a.items())
    if (!b.contains(key)) text += fmt::format("\n  {}: was {}, now none", key, value.dump());
  return text;
}

}  // namespace brim::train
