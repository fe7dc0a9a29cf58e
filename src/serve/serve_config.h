// SPDX-License-Identifier: Apache-2.0
// Reads serve.yaml: models, ladders, queues, plain settings. Can build the same ladder from environment variables
// instead. Unknown keys are errors with file, line and the nearest known name.
#pragma once
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "brim/brim.h"
#include "serve/durable/queue_rules.h"
#include "serve/ladder.h"

namespace brim::serve {

struct ModelEntry {
  std::string name;
  std::string path;  // directory, model name, or vader
  Precision precision = {};
  std::optional<double> keep_alive_seconds;        // idle time before parking; negative: never; empty: server default
  std::optional<Pooling> pooling = {};             // set: the model is served as an embedder with this pooling
  std::map<std::string, std::string> labels = {};  // replacement names for the model's labels
  std::optional<ZeroShot> zero_shot = {};          // NLI models: serve a classifier with these labels
  std::optional<EntityLabels> entities = {};       // GLiNER models: serve a tagger with these labels
  std::string adapter = {};                        // LoRA adapter of the model: directory or name
  bool share_base = false;                         // see ScorerOptions; set by share_bases()
};

// A top-level `key: value` for the server's own settings.
struct PlainSetting {
  std::string key, value, where;  // where: "serve.yaml:3", or the variable that implies it
};

struct ServeConfig {
  std::vector<ModelEntry> models;  // in file order
  std::vector<LadderRules> ladders;
  std::vector<QueueRules> queues;
  std::vector<PlainSetting> settings;
  std::vector<std::string> allowed_hosts;
};

// `settings`: the plain keys that are allowed. Throws usage with file and line; `setting` names the
// file if it cannot be read.
ServeConfig read_serve_config(const std::filesystem::path& path, const std::vector<std::string>& settings,
                              const char* setting = "config");

// Builds a ladder and a queue, both named `sentiment`, from SENTIMENT_MODEL_NAME, FEATURE_ADAPTIVE_SENTIMENT,
// SENTIMENT_MODEL_OPEN, SENTIMENT_MODEL_CLOSED, MARKET_STATUS_OVERRIDE and SENTIMENT_BATCH_SIZE; empty if none is set.
// `get` reads a variable. There is no gate data, so the accuracy loss of the rungs is not measured. If VADER answers
// while the market is closed, `settings` unload idle models and release the device.
ServeConfig config_from_env(const std::function<std::optional<std::string>(const char* name)>& get);

// Throws usage if a ladder, rung or queue refers to an unknown model, or if two objects have the same name.
void check_names(const ServeConfig& config);

// Lets all models with the path of an adapter's base share its weights.
void share_bases(ServeConfig& config);

// Parses "30s", "10m", "2h", "0", "never" or "-1" (returns -1); throws BadValue.
double read_seconds(std::string_view text);

}  // namespace brim::serve
