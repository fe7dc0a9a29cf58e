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
  std::optional<Pooling> pooling;  // empty if the directory has no Pooling module
  bool include_prompt = true;      // if false, mean pooling excludes the tokens up to the end of the prompt
  bool normalize = false;
  bool lower_case = false;
  int64_t max_length = 0;    // in tokens, including special tokens; 0: limit of the model
  int64_t truncate_dim = 0;  // number of leading vector values to keep, after normalization; 0: all
  std::map<std::string, std::string> prompts;
  std::string default_prompt_name;  // empty if none
  // Returns the prompt `name`, or the default one if `name` is empty. Throws Error(usage) if it does not exist.
  const std::string& prompt(const std::string& name = {}) const;
};

// Returns defaults if DIR has no modules.json. Throws Error(bad_model) with file, key and value for unsupported modules
// and values. `any_pooling`: the caller sets the pooling, so an unsupported one in the files is not an error.
SentenceSettings load_sentence_settings(const std::filesystem::path& dir, bool any_pooling = false);

// The existing files that these settings are read from, relative to `dir`.
std::vector<std::filesystem::path> sentence_files(const std::filesystem::path& dir);
void copy_sentence_files(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace brim::hub
