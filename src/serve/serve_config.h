// SPDX-License-Identifier: Apache-2.0
// serve.yaml: models, ladders, queues; and the same ladder from the keys of a news bot's .env, without YAML. A key that
// does not exist is refused with its place and the nearest name.
#pragma once
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "brim/brim.h"
#include "serve/ladder.h"
#include "serve/queue_rules.h"

namespace brim::serve {

struct ModelEntry {
  std::string name;
  std::string path;  // a directory, a model's name, or vader
  std::string precision = "auto";
  std::optional<double> keep_alive_seconds;        // parked when idle for so long; negative: never; none: the server's
  std::optional<Pooling> pooling = {};             // it gives vectors, made so
  std::map<std::string, std::string> labels = {};  // other names for its own
};

// A plain `key: value` at the top of the file, for the server's own table of settings.
struct PlainSetting {
  std::string key, value, where;  // where: "serve.yaml:3", or what asks for it
};

struct ServeConfig {
  std::vector<ModelEntry> models;  // as they stand
  std::vector<LadderRules> ladders;
  std::vector<QueueRules> queues;
  std::vector<PlainSetting> settings;
  std::vector<std::string> allowed_hosts;
};

// `settings`: the plain keys there are. Throws usage with file and line.
ServeConfig read_serve_config(const std::filesystem::path& path, const std::vector<std::string>& settings);

// SENTIMENT_MODEL_NAME, FEATURE_ADAPTIVE_SENTIMENT, SENTIMENT_MODEL_OPEN and _CLOSED, MARKET_STATUS_OVERRIDE and
// SENTIMENT_BATCH_SIZE as a ladder and a queue, both called `sentiment`; nothing where none of them is set. `get` reads
// a variable. Rungs are named by their models, so what they lose is not measured until gate data is given. Where rules
// answer while the market is closed, `settings` let models leave the device and give it up.
ServeConfig config_from_env(const std::function<std::optional<std::string>(const char* name)>& get);

// Throws usage where a ladder, a rung or a queue names what is not there, or two things share a name.
void check_names(const ServeConfig& config);

// "30s", "10m", "2h", "0", "never" or "-1" (returns -1); throws BadValue.
double read_seconds(std::string_view text);

}  // namespace brim::serve
