// SPDX-License-Identifier: Apache-2.0
// Streaming reader for tokenizer.json: the vocabulary and merges, which make up most of the file, go directly into flat
// lists; only the rest becomes a JSON tree. A vocabulary of 50,000 loads in a fraction of the time a full tree takes.
#pragma once
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace brim::text {

struct TokenizerJson {
  nlohmann::json tree;  // without model.vocab and model.merges
  enum class VocabKind { none, ids, scores } vocab_kind = VocabKind::none;
  std::vector<std::pair<std::string, int32_t>> vocab;  // {"token": id, …}
  std::vector<std::pair<std::string, double>> scores;  // [["token", score], …]
  bool has_merges = false;
  std::vector<std::pair<std::string, std::string>> merges;  // ["a b", …] or [["a", "b"], …]
};

// Throws Error(bad_model) with the file, the byte offset or key, the value and the expected form.
TokenizerJson read_tokenizer_json(std::string_view text, const std::filesystem::path& file);

// Reads a file with a single object from token to id (vocab.json).
std::vector<std::pair<std::string, int32_t>> read_vocab_json(std::string_view text, const std::filesystem::path& file);

}  // namespace brim::text
