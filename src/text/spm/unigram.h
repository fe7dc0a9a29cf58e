// SPDX-License-Identifier: Apache-2.0
// SentencePiece's Unigram model as tokenizer.json defines it: of all ways to cut a piece of text into vocabulary
// entries the one with the highest sum of scores. A character no entry covers costs the lowest score minus 10; runs of
// such characters become one unknown token, or byte tokens.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/pipeline.h"

namespace brim::text {

struct UnigramConfig {
  std::vector<std::pair<std::string, double>> vocab;  // by id; of equal entries the last counts
  int32_t unk_id = -1;                                // -1: unknown text is an error
  bool byte_fallback = false;
};

// Throws Error(bad_model) with `where` (file and place).
std::unique_ptr<TokenModel> make_unigram(UnigramConfig config, const std::string& where);

}  // namespace brim::text
