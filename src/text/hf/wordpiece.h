// SPDX-License-Identifier: Apache-2.0
// WordPiece: greedy longest match, then longest continuation ("##…"), and so on; a word that cannot be covered is
// unknown as a whole. Tokens of up to 15 bytes are found with a two-register hash; per pair of first bytes a mask lists
// the existing token lengths, and a filter with one bit set per token rejects most of the remaining candidates.
#pragma once
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "text/pipeline.h"
#include "text/short_key.h"
#include "text/vocab.h"

namespace brim::text {

struct WordPieceConfig {
  std::vector<std::pair<std::string, int32_t>> vocab;
  std::string unk_token = "[UNK]", continuing_subword_prefix = "##";
  int64_t max_input_chars_per_word = 100;
};

class WordPieceModel : public TokenModel {
 public:
  WordPieceModel(const WordPieceConfig& config, const std::filesystem::path& file);

  void tokenize(std::string_view piece, std::vector<Token>& out) const override;
  void tokenize_ids(std::string_view piece, std::vector<int32_t>& out) const override;
  int32_t id(std::string_view token) const override { return vocab_.find(token); }
  std::string_view token(int32_t id) const override { return vocab_.token(id); }
  int32_t vocab_size() const override { return vocab_.size(); }
  int32_t unk_id() const override { return unk_id_; }
  const char* kind() const override { return "wordpiece"; }

 private:
  // Tokens for one position: at the start of a word, or after the start.
  class Table {
   public:
    void add(std::string_view token, int32_t id);
    void build();
    // Finds the longest token at the start of `text` (not empty, 16 bytes readable); returns its length, or 0.
    size_t longest(std::string_view text, int32_t& id) const;

   private:
    struct Slot {
      ShortKey key;
      int32_t id = -1;
    };
    static size_t pair_index(uint64_t first_bytes) { return ((first_bytes & 0xFFFF) * 0x9E3779B1u & 0xFFFFFFFF) >> 20; }
    bool may_have(uint64_t hash) const { return (filter_[hash >> filter_shift_] >> (hash & 63) & 1) != 0; }
    size_t longest_of_long(std::string_view text, int32_t& id) const;
    std::vector<std::pair<std::string, int32_t>> added_, long_;  // long_: more than 15 bytes, sorted by text
    std::array<int32_t, 256> single_{};
    std::vector<uint16_t> lengths_;  // by first two bytes: bit n set if they start a token of n bytes (up to 15)
    std::vector<uint64_t> filter_;   // one bit set per token: rejects most missing tokens and fits the L1 cache
    std::vector<Slot> slots_;
    int filter_shift_ = 63;
    size_t longest_ = 0;
  };

  template <class Emit>
  void split(std::string_view piece, Emit emit) const;
  Vocab vocab_;
  Table first_, next_;
  int32_t unk_id_;
  size_t max_chars_;
};

}  // namespace brim::text
