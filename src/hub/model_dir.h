// SPDX-License-Identifier: Apache-2.0
// Resolves the argument of --model to a directory: a path, a name under models/ next to the program or in $BRIM_MODELS,
// or a repository in the Hugging Face cache. Downloads nothing; a missing model is a usage error that lists the
// searched locations and the command to fetch it.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace brim::hub {

struct ModelSearchPath {
  std::vector<std::filesystem::path> roots;  // directories of model directories; the first match wins
  std::filesystem::path hub;                 // Hugging Face cache: models--ORG--NAME/…
};

// The models/ folders of Brim itself: in $BRIM_HOME, next to the program, and in the installation of the program or
// library.
std::vector<std::filesystem::path> model_roots();
// "default" if that model is in one of them, else "vader".
std::string default_model();

// `beside_program`: the models/ folders of the program. They are followed by $BRIM_MODELS (separated by colons); the
// cache is $HF_HUB_CACHE, $HF_HOME/hub, or ~/.cache/huggingface/hub.
ModelSearchPath model_search_path(const std::vector<std::filesystem::path>& beside_program);

// Whether this is the name of the built-in rules (case-insensitive), which have no directory.
bool names_vader(std::string_view name);

// Returns the directory. Throws Error(usage) if there is none.
std::filesystem::path resolve_model(const std::string& name_or_dir, const ModelSearchPath& search_path);

// The files that affect a model's results (config, weights, tokenizer): of its directory, sorted by name, then of the
// directories it refers to.
std::vector<std::string> model_files(const std::filesystem::path& dir);
// Their names, sizes and modification times, one line each: changes if a file is replaced.
std::string model_facts(const std::filesystem::path& dir);

// The repository for a short name: finbert → ProsusAI/finbert; other names are returned unchanged.
std::string hub_name(const std::string& name);

struct FoundModel {
  std::string name;  // argument for --model
  std::filesystem::path dir;
};
std::vector<FoundModel> list_models(
    const ModelSearchPath& search_path);  // directories with a config.json, by root and name

}  // namespace brim::hub
