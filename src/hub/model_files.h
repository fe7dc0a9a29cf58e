// SPDX-License-Identifier: Apache-2.0
// The directories that make up a model: a Hugging Face directory and, optionally, a LoRA adapter for it. Opens both as
// one config and one source of weights.
#pragma once
#include <concepts>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "hub/hf_config.h"
#include "hub/weights.h"

namespace brim::hub {

struct ModelFiles {
  std::filesystem::path dir, adapter;  // `adapter` is empty if there is none

  template <class Path>
  requires std::convertible_to<Path, std::filesystem::path> ModelFiles(const Path& model,
                                                                       std::filesystem::path lora = {})
      : dir(model), adapter(std::move(lora)) {}
  ModelFiles() = default;
  std::string text() const;  // for messages
  // Directory that keeps measurements of this model.
  const std::filesystem::path& measured_dir() const { return adapter.empty() ? dir : adapter; }
};

struct OpenModel {
  HfConfig config;
  std::unique_ptr<WeightSource> weights;
};
// The head and the labels are the adapter's, if it has any. Throws bad_model, also for an adapter of another model.
OpenModel open_model(const ModelFiles& files);

// Fingerprint of the files: model_facts() of both directories.
std::string model_facts(const ModelFiles& files);

}  // namespace brim::hub
