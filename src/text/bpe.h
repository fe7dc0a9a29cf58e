// SPDX-License-Identifier: Apache-2.0
// Byte-pair encoding by merge rank, as tokenizer.json's BPE model defines it: byte-level (RoBERTa, GPT-2) or over code
// points (SentencePiece BPE, with byte fallback and fused unknowns).
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/pipeline.h"

namespace brim {

struct BpeConfig {
  std::vector<std::pair<std::string, int32_t>> vocab;
  std::vector<std::pair<std::string, std::string>> merges;  // by rank
  std::string unk_token;                                    // empty: unknown text gives no token
  std::string continuing_subword_prefix, end_of_word_suffix;
  bool fuse_unk = false, byte_fallback = false, ignore_merges = false;
};

// Throws Error(bad_model) naming `file` if ids repeat, a merge's parts or result are not in the vocabulary, or the
// unknown token is not.
std::unique_ptr<Model> make_bpe(const BpeConfig& config, const std::filesystem::path& file);

}  // namespace brim
