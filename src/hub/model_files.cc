// SPDX-License-Identifier: Apache-2.0
#include "hub/model_files.h"

#include <fmt/format.h>

#include "hub/adapter.h"
#include "hub/model_dir.h"

namespace brim::hub {

std::string ModelFiles::text() const {
  return adapter.empty() ? dir.string() : fmt::format("{} with {}", dir.string(), adapter.string());
}

OpenModel open_model(const ModelFiles& files) {
  OpenModel model{load_hf_config(files.dir), WeightSource::open(files.dir)};
  if (files.adapter.empty()) return model;
  auto adapter = std::make_unique<const Adapter>(files.adapter, *model.weights);
  model.config = adapter->config_with_head(model.config);
  model.weights->adapt(std::move(adapter));
  return model;
}

std::string model_facts(const ModelFiles& files) {
  return model_facts(files.dir) + (files.adapter.empty() ? "" : "adapter\n" + model_facts(files.adapter));
}

}  // namespace brim::hub
