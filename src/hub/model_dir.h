// SPDX-License-Identifier: Apache-2.0
// From what a user types after --model to a directory: a directory itself, a name under models/ beside the program or
// in $BRIM_MODELS, or a repository in the Hugging Face cache. Nothing is downloaded; a missing model is a usage error
// that says where Brim looked and which command fetches it.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace brim::hub {

struct ModelPlaces {
  std::vector<std::filesystem::path> roots;  // directories of model directories, first match wins
  std::filesystem::path hub;                 // Hugging Face's cache: models--ORG--NAME/…
};

// The models/ folders that belong to Brim: of $BRIM_HOME, beside the program, and of the installation the program or
// the library is part of.
std::vector<std::filesystem::path> model_roots();
// "default" where that model is in one of them, else "vader".
std::string default_model();

// `beside_program`: the models/ folders that belong to the program. After them $BRIM_MODELS (separated by colons);
// the cache from $HF_HUB_CACHE, $HF_HOME/hub, or ~/.cache/huggingface/hub.
ModelPlaces model_places(const std::vector<std::filesystem::path>& beside_program);

// The rules that are built in go by this name, in capitals too; they have no directory.
bool names_vader(std::string_view name);

// The directory. Throws Error(usage) where there is none.
std::filesystem::path resolve_model(const std::string& name_or_dir, const ModelPlaces& places);

// The files of a model directory that decide what it answers (config, weights, tokenizer), by name.
std::vector<std::string> model_files(const std::filesystem::path& dir);
// Their names, sizes and times, a line each: another text where one of them was exchanged.
std::string model_facts(const std::filesystem::path& dir);

// The repository a short name stands for: finbert → ProsusAI/finbert; other names are returned as they are.
std::string hub_name(const std::string& name);

struct FoundModel {
  std::string name;  // what to give to --model
  std::filesystem::path dir;
};
std::vector<FoundModel> list_models(const ModelPlaces& places);  // directories with a config.json, by place then name

}  // namespace brim::hub
