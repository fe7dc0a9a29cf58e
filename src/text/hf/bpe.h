// SPDX-License-Identifier: Apache-2.0
// Byte-pair encoding by merge rank, as defined by tokenizer.json: byte-level (RoBERTa, GPT-2) or over code points
// (SentencePiece BPE, with byte fallback and fused unknowns). The pair of lowest rank merges first, leftmost on ties;
// short pieces find it with a scan, long ones with a heap, so a word of n symbols takes O(n log n).
#pragma once
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/pipeline.h"
#include "text/short_key.h"
#include "text/vocab.h"

namespace brim::text {

struct BpeConfig {
  std::vector<std::pair<std::string, int32_t>> vocab;
  std::vector<std::pair<std::string, std::string>> merges;  // by rank
  std::string unk_token;                                    // empty: unknown text produces no token
  std::string continuing_subword_prefix, end_of_word_suffix;
  bool fuse_unk = false, byte_fallback = false, ignore_merges = false;
};

class BpeModel : public TokenModel {
 public:
  // Throws Error(bad_model) naming `file` if ids repeat, or if a merge's parts or result or the unknown token are
  // missing from the vocabulary.
  BpeModel(const BpeConfig& config, const std::filesystem::path& file);

  void tokenize(std::string_view piece, std::vector<Token>& out) const override;
  void tokenize_ids(std::string_view piece, std::vector<int32_t>& out) const override;
  int32_t id(std::string_view token) const override { return vocab_.find(token); }
  std::string_view token(int32_t id) const override { return vocab_.token(id); }
  int32_t vocab_size() const override { return vocab_.size(); }
  int32_t unk_id() const override { return unk_id_; }
  const char* kind() const override { return byte_level_ ? "byte_bpe" : "bpe"; }

  // True if each byte has its own token at GPT-2's byte level and no other rule handles unknown text: tokenize_bytes
  // then accepts the raw bytes of a piece instead of the byte-level text.
  bool byte_level() const { return byte_level_; }
  void tokenize_bytes(std::string_view bytes, std::vector<int32_t>& out) const;

 private:
  struct Symbol {
    int32_t id;
    uint32_t bytes;  // length in the piece
  };
  static constexpr uint32_t kNone = UINT32_MAX;

  // Rank of a pair, or kNone. A filter with eight bits per merge rejects most pairs that do not merge without touching
  // the table, which does not fit the L1 and L2 caches.
  uint32_t rank(int32_t left, int32_t right) const {
    const uint64_t key = static_cast<uint64_t>(left) << 21 | static_cast<uint64_t>(right);
    const uint64_t h = hash(key);
    if ((filter_[h >> filter_shift_] >> (h & 63) & 1) == 0) return kNone;
    for (size_t slot = (h >> 6) & mask_;; slot = (slot + 1) & mask_) {
      const uint64_t entry = merges_[slot];
      if (entry == 0) return kNone;
      if (entry >> 22 == key) return static_cast<uint32_t>(entry & 0x3FFFFF) - 1;
    }
  }
  static uint64_t hash(uint64_t key) { return fold_multiply(key ^ 0xA0761D6478BD642FULL, 0x9E3779B97F4A7C15ULL); }

  int32_t character_id(std::string_view character) const;  // -1 if it has no token
  void symbols_of(std::string_view piece, std::vector<Symbol>& out) const;
  void merge(std::vector<Symbol>& symbols) const;
  void merge_short(std::vector<Symbol>& symbols) const;
  void merge_long(std::vector<Symbol>& symbols) const;

  Vocab vocab_;
  std::string continuing_subword_prefix_, end_of_word_suffix_;
  int32_t unk_id_ = -1;
  bool fuse_unk_, byte_fallback_, ignore_merges_, byte_level_ = false;
  std::vector<uint64_t>
      merges_;  // open addressing: left (21 bits), right (21 bits), rank plus one (22 bits); 0 is an empty slot
  std::vector<int32_t> merged_;  // by rank
  std::vector<uint64_t> filter_;
  size_t mask_ = 0;
  int filter_shift_ = 63;
  static constexpr char32_t kCharacters = 0x2600;  // most alphabets, punctuation, and SentencePiece's U+2581
  std::vector<int32_t> character_ids_;             // by code point below kCharacters
  std::array<int32_t, 256> byte_ids_{}, fallback_ids_{};
  Vocab raw_;  // byte level with ignore_merges: tokens by their raw bytes
};

std::unique_ptr<TokenModel> make_bpe(const BpeConfig& config, const std::filesystem::path& file);

}  // namespace brim::text
