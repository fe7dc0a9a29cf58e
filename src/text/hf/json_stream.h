// SPDX-License-Identifier: Apache-2.0
// tokenizer.json read as a stream: its vocabulary and merges, which are nearly all of the file, go straight into flat
// lists; only the rest becomes a JSON tree. A vocabulary of 50,000 loads in a fraction of the time a whole tree takes.
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

// Throws Error(bad_model) with the file, the byte or the key, the value and what was expected.
TokenizerJson read_tokenizer_json(std::string_view text, const std::filesystem::path& file);

// A file that is one object from token to id (vocab.json).
std::vector<std::pair<std::string, int32_t>> read_vocab_json(std::string_view text, const std::filesystem::path& file);

}  // namespace brim::text
