// SPDX-License-Identifier: Apache-2.0
// Flags for entities by label with a GLiNER model, shared by score and eval. Entities are found in
// engine/entity_task.h.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "brim/brim.h"
#include "cli/engine_flags.h"

namespace brim::cli {

struct EntityFlags {
  std::optional<std::string> entities, entities_file;
  std::optional<float> threshold;
  bool nested = false;

  void add_to(CLI::App& app, bool with_nested);
  // The checked settings; nullopt without labels.
  std::optional<EntityLabels> read() const;
  // Sets them in `engine`, with which `models` will be opened: GLiNER models need them, others ignore them, but at
  // least one must be a GLiNER model.
  void apply(EngineFlags& engine, const std::vector<std::string>& models) const;
};

}  // namespace brim::cli
