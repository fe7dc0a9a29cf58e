// SPDX-License-Identifier: Apache-2.0
// The commands of a build with BRIM_SCORING_ONLY, listed in ./brim too, which builds all commands for any other.
#include "cli/engine_flags.h"
#include "cli/verbs.h"

namespace brim::cli {
namespace {

constexpr Verb kVerbs[] = {
    {"score", "label the texts of files or stdin", setup_score},
    {"shards", "deprecated: use `brim score --shard status`, `missing` or `check`", setup_shards},
    {"embed", "compute embeddings of texts", setup_embed},
    {"tokenize", "show token ids, tokens and offsets", setup_tokenize},
    {"pull", "download a model from a Hugging Face hub into the local cache", setup_pull},
};

}  // namespace

std::span<const Verb> all_verbs() { return kVerbs; }

std::vector<SettingInfo> settings_of(const std::string&) { return engine_settings().infos(); }

std::optional<std::string> nearest_setting(const std::string&, const std::string&) { return std::nullopt; }

}  // namespace brim::cli
