// SPDX-License-Identifier: Apache-2.0
#include "cli/entity_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/error.h"
#include "engine/entity_task.h"
#include "engine/zero_shot.h"
#include "hub/gliner_config.h"

namespace brim::cli {

void EntityFlags::add_to(CLI::App& app, bool with_nested) {
  app.add_option("--entities", entities, "find entities of these types, separated by commas, with a GLiNER model");
  app.add_option("--entities-file", entities_file, "file of entity types, one per line");
  app.add_option("--threshold", threshold, "entities must score above this, from 0 to 1 (default: 0.5)");
  if (with_nested) app.add_flag("--nested", nested, "allow such entities to contain each other");
}

std::optional<EntityLabels> EntityFlags::read() const {
  if (entities && entities_file)
    fail(ErrorCode::usage, "--entities-file {}: cannot be combined with --entities", *entities_file);
  if (!entities && !entities_file) {
    if (threshold || nested)
      fail(ErrorCode::usage, "{}: requires --entities or --entities-file",
           threshold ? fmt::format("--threshold {}", *threshold) : "--nested");
    return std::nullopt;
  }
  EntityLabels labels;
  if (entities_file)
    labels.labels = engine::read_label_lines(*entities_file, "--entities-file");
  else if (entities->find_first_not_of(" \t\r\n\v\f") != std::string::npos)
    labels.labels = engine::split_labels(*entities, ',');
  if (threshold) labels.threshold = *threshold;
  labels.nested = nested;
  engine::check_entity_labels(labels, {.labels = entities ? "`entities`" : "`entities_file`"});
  return labels;
}

void EntityFlags::apply(EngineFlags& engine, const std::vector<std::string>& models) const {
  engine.entities = read();
  const auto by_label = [](const std::string& model) {
    const std::string dir = find_model(model);
    return !dir.empty() && hub::is_gliner(dir);
  };
  const auto found = std::find_if(models.begin(), models.end(), by_label);
  if (engine.entities && found == models.end())
    fail(ErrorCode::usage, "--entities: requires a GLiNER model (gliner_config.json); {} {} none",
         fmt::join(models, ", "), models.size() == 1 ? "is" : "are");
  if (!engine.entities && found != models.end())
    fail(ErrorCode::usage, Remedy{"name the entities to find: --entities \"person,company\""},
         "--model {}: is a GLiNER model, which has no labels of its own", *found);
}

}  // namespace brim::cli
