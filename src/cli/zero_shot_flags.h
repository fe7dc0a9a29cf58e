// SPDX-License-Identifier: Apache-2.0
// Flags for zero-shot classification by an NLI model, shared by score, eval, compare and plan. The classification is in
// engine/zero_shot.h.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "brim/brim.h"
#include "cli/engine_flags.h"

namespace brim::cli {

struct ZeroShotFlags {
  std::optional<std::string> labels, labels_file, pattern;
  bool multi_label = false;

  void add_to(CLI::App& app);
  // The checked settings; nullopt without labels.
  std::optional<ZeroShot> read() const;
  // Sets them in `engine`, with which `models` will be opened: a single model must be an NLI model; several need at
  // least one, and the others keep their labels.
  void apply(EngineFlags& engine, const std::vector<std::string>& models) const;
};

}  // namespace brim::cli
