// SPDX-License-Identifier: Apache-2.0
// SentencePiece's Unigram model as defined by tokenizer.json: splits text into the vocabulary entries with the highest
// total score. A character that no entry covers costs the lowest score minus 10; runs of such characters become one
// unknown token, or byte tokens.
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
  std::vector<std::pair<std::string, double>> vocab;  // by id; the last of equal entries wins
  int32_t unk_id = -1;                                // -1: unknown text is an error
  bool byte_fallback = false;
};

// Throws Error(bad_model) with `where` (file and location).
std::unique_ptr<TokenModel> make_unigram(UnigramConfig config, const std::string& where);

}  // namespace brim::text
