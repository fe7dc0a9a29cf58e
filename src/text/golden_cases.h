// SPDX-License-Identifier: Apache-2.0
// For tests: the tokenizers under tests/data/tokenizers and the reference output for their texts.
#pragma once
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace brim::text {

inline std::filesystem::path golden_tokenizers() {
  return std::filesystem::path(BRIM_SOURCE_DIR) / "tests/data/tokenizers";
}

struct GoldenCase {
  std::string text;
  Encoding expected;
};

// Reads golden.jsonl. Offsets are empty if the reference has none.
inline std::vector<GoldenCase> read_golden_cases(const std::filesystem::path& folder) {
  std::vector<GoldenCase> cases;
  std::ifstream in(folder / "golden.jsonl");
  for (std::string line; std::getline(in, line);) {
    const auto json = nlohmann::json::parse(line);
    GoldenCase c{json["text"], {}};
    json["ids"].get_to(c.expected.ids);
    json["tokens"].get_to(c.expected.tokens);
    if (json.contains("offsets")) json["offsets"].get_to(c.expected.offsets);
    cases.push_back(std::move(c));
  }
  return cases;
}

}  // namespace brim::text
