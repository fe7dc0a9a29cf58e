// SPDX-License-Identifier: Apache-2.0
// The commands of a complete build. Builds with BRIM_SCORING_ONLY have verbs_scoring.cc instead.
#include "cli/verbs.h"

#include "cli/engine_flags.h"
#include "forecast/settings.h"
#include "train/settings.h"

namespace brim::cli {
namespace {

constexpr Verb kVerbs[] = {
    {"score", "label the texts of files or stdin", setup_score},
    {"shards", "deprecated: use `brim score --shard status`, `missing` or `check`", setup_shards},
#if defined(BRIM_WITH_SERVE)
    {"serve", "serve models over HTTP", setup_serve},
    {"queue", "check and repair the queues of a stopped server", setup_queue},
#endif
    {"train", "fine-tune a model on labelled rows", setup_train},
    {"plan", "show how a model would use the memory of a device", setup_plan},
    {"eval", "evaluate a model on labelled data", setup_eval},
    {"embed", "compute embeddings of texts", setup_embed},
    {"forecast", "forecast time series and evaluate forecasts", setup_forecast},
    {"doctor", "diagnose a slow run and predict the gain of each fix", setup_doctor},
    {"compare", "compare models on the same rows: accuracy, agreement, speed, memory", setup_compare},
    {"profile", "measure load time, latency, throughput, concurrency and memory of models", setup_profile},
    {"tokenize", "show token ids, tokens and offsets", setup_tokenize},
    {"tune", "deprecated: use `brim models tune`", setup_tune},
    {"bench", "benchmark a server under load", setup_bench},
    {"pull", "download a model from a Hugging Face hub into the local cache", setup_pull},
    {"models", "list, show, export and tune models", setup_models},
    {"monitor", "watch the GPUs, this machine and its running Brim processes", setup_monitor},
};

}  // namespace

std::span<const Verb> all_verbs() { return kVerbs; }

std::vector<SettingInfo> settings_of(const std::string& command) {
  if (command == "train") return train::train_settings().infos();
  if (command.starts_with("forecast ")) return forecast::forecast_settings().infos();
  return engine_settings().infos();
}

std::optional<std::string> nearest_setting(const std::string& command, const std::string& typed) {
  if (command == "train") return train::train_settings().nearest(typed);
  return std::nullopt;
}

}  // namespace brim::cli
