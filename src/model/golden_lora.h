// SPDX-License-Identifier: Apache-2.0
// Test support for LoRA: adapters that PEFT wrote for the tiny models, with its losses and gradients in fp64
// (tests/data/lora, from tools/make_lora_goldens.py).
#pragma once
#include <memory>

#include "model/golden_training.h"
#include "model/lora.h"

namespace brim::model {

inline std::filesystem::path golden_loras() { return golden_models().parent_path() / "lora"; }

inline std::vector<std::string> golden_lora_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(golden_loras()))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

inline nlohmann::json golden_lora(const std::string& name) {
  std::ifstream stream(golden_loras() / name / "golden.json");
  return nlohmann::json::parse(stream);
}

// Training of a tiny model with the golden adapter.
inline std::unique_ptr<GoldenTraining> start_golden_lora(device::Device& device, const std::string& name,
                                                         ops::Precision precision, int threads = 1,
                                                         double lora_dropout = 0) {
  const auto source = hub::WeightSource::open(golden_models() / name);
  const hub::Adapter adapter(golden_loras() / name, *source);
  hub::LoraConfig lora = adapter.lora(head_tensors(read_shape(golden_models() / name)));
  lora.dropout = lora_dropout;
  auto training = std::make_unique<GoldenTraining>(device, name, precision, threads, 0, Freeze(), lora);
  std::vector<float> master;
  load_master(*source, training->shape(), 0, 0, master);
  load_adapter(adapter, *source, training->shape(), false, master);
  training->state().upload(training->stream(), master);
  return training;
}

}  // namespace brim::model
