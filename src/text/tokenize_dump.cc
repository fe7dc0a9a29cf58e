// SPDX-License-Identifier: Apache-2.0
// For tools/check_tokenizer_parity.py: reads one JSON string per line and writes ids, tokens and offsets as JSON lines.
// Also checks that encode_ids gives the same ids.
#include <fmt/format.h>

#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "text/tokenizer.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: tokenize_dump DIR < texts.jsonl\n";
    return 2;
  }
  try {
    const auto tokenizer = brim::text::Tokenizer::load(argv[1]);
    std::string line;
    std::vector<int32_t> ids;
    while (std::getline(std::cin, line)) {
      const auto text = nlohmann::json::parse(line).get<std::string>();
      const brim::text::Encoding e = tokenizer->encode(text);
      ids.clear();
      tokenizer->encode_ids(text, ids);
      nlohmann::json out = {{"ids", e.ids}, {"tokens", e.tokens}, {"offsets", e.offsets}};
      if (ids != e.ids) out["fast_ids"] = ids;
      std::cout << out.dump() << '\n';
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 4;
  }
}
