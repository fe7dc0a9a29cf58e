// SPDX-License-Identifier: Apache-2.0
// Settings of a sentence-transformers directory: pooling, normalization, length, prompts. Reads and checks the files;
// the engine applies the values.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace brim::hub {

struct SentenceSettings {
  enum class Pooling { mean, cls };
  std::optional<Pooling> pooling;  // none: the directory has no Pooling module
  bool include_prompt = true;      // false: mean pooling leaves out the tokens up to the end of the prompt
  bool normalize = false;
  bool lower_case = false;
  int64_t max_length = 0;    // in tokens, special ones included; 0: the model's own
  int64_t truncate_dim = 0;  // leading values of a vector to keep, after normalization; 0: all
  std::map<std::string, std::string> prompts;
  std::string default_prompt_name;  // empty: none
  // The prompt called `name`, or the default one if it is empty. Throws Error(usage) if there is none of that name.
  const std::string& prompt(const std::string& name = {}) const;
};

// Defaults if DIR has no modules.json. Unsupported modules and values are Error(bad_model) with file, key and value.
// `any_pooling`: the caller sets the pooling, so an unsupported one in the files is no error.
SentenceSettings load_sentence_settings(const std::filesystem::path& dir, bool any_pooling = false);

// The files these settings are read from, relative to `dir`, those that exist.
std::vector<std::filesystem::path> sentence_files(const std::filesystem::path& dir);
void copy_sentence_files(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace brim::hub
