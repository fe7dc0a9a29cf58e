// SPDX-License-Identifier: Apache-2.0
// The tokenizer as the rest of Brim sees it: a directory in, token ids out. Ids, tokens and offsets equal those of
// Hugging Face's fast tokenizers. Two ways in: encode_ids, the fast one that keeps no offsets, and encode, which keeps
// everything. Truncation and padding belong to the caller (prefix() and suffix() say what surrounds a text).
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/token.h"

namespace brim::text {

// One text, special tokens included. Offsets are [begin, end) in Unicode code points of the text (after invalid bytes
// became U+FFFD); special tokens have (0, 0). The fastBPE layout has no offsets: the vector is then empty.
struct Encoding {
  std::vector<int32_t> ids;
  std::vector<std::string> tokens;
  std::vector<std::pair<int32_t, int32_t>> offsets;
};

// Ids of the tokens with a role; -1 where the tokenizer has none.
struct SpecialIds {
  int32_t cls = -1, sep = -1, pad = -1, unk = -1, mask = -1, bos = -1, eos = -1;
};

// How two texts become one sequence: tokens (typed) before the first, between them, after the second.
struct PairTemplate {
  std::vector<int32_t> before, between, after;
  int32_t first_type = 0, second_type = 0;
  size_t special() const { return before.size() + between.size() + after.size(); }
  int32_t largest_type() const;
};

// What two texts of so many tokens keep where there is room for `room` of them: the longer loses first (transformers'
// longest_first).
struct PairLengths {
  int64_t first, second;
};
PairLengths fit_pair(int64_t first, int64_t second, int64_t room);

class Tokenizer {
 public:
  // Reads tokenizer.json; without one, *.model, vocab.json + merges.txt, bpe.codes + vocab.txt, or vocab.txt; the
  // layout of the files decides the family. tokenizer_config.json and special_tokens_map.json are honoured where they
  // exist. Throws Error(bad_model) that names file, place and value.
  static std::unique_ptr<Tokenizer> load(const std::filesystem::path& dir);

  virtual ~Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Appends the ids of `text` to `out`, special tokens included, never truncated. Any bytes are accepted: invalid UTF-8
  // becomes U+FFFD as Python's errors="replace" does. Both calls may run on many threads at once.
  virtual void encode_ids(std::string_view text, std::vector<int32_t>& out) const = 0;
  virtual Encoding encode(std::string_view text) const = 0;

  // The vocabulary's text of an id (not decoded: "##ing", "Ġthe"); empty for an id that does not exist.
  virtual std::string token(int32_t id) const = 0;
  virtual int32_t id(std::string_view token) const = 0;  // -1 if there is none
  // Ids back to text, as Hugging Face's decode() does; ids that do not exist are passed over. What normalizers changed
  // does not come back.
  virtual std::string decode(std::span<const int32_t> ids, bool skip_special) const = 0;

  // Largest id plus one: what an embedding table must at least hold.
  int32_t vocab_size() const { return vocab_size_; }
  const SpecialIds& special() const { return special_; }
  int32_t cls_id() const { return special_.cls; }
  int32_t sep_id() const { return special_.sep; }
  int32_t pad_id() const { return special_.pad; }
  int32_t unk_id() const { return special_.unk; }
  int32_t mask_id() const { return special_.mask; }

  // Tokens put before and after every text; a window of a long text is prefix + some of the middle + suffix.
  std::span<const int32_t> prefix() const { return prefix_; }
  std::span<const int32_t> suffix() const { return suffix_; }

  // Nothing where the post-processor knows no pairs, or puts nothing between the two texts.
  const std::optional<PairTemplate>& pair() const { return pair_; }
  // Appends the typed tokens of two texts: as transformers' longest_first truncation leaves them where they are more
  // than `longest`, which must exceed the special tokens; `keep_end` takes from the beginnings instead of the ends.
  // Returns how many tokens there were before. Only where there is a pair().
  int64_t encode_pair(std::string_view first, std::string_view second, int64_t longest, bool keep_end,
                      std::vector<int32_t>& out) const;
  // Its parts, for those who cut otherwise: the ids of a text without special tokens, in place of what `out` held …
  void content_ids(std::string_view text, std::vector<int32_t>& out) const;
  // … and two texts' ids with the template's tokens around them, appended and typed.
  void join_pair(std::span<const int32_t> first, std::span<const int32_t> second, std::vector<int32_t>& out) const;

  // From tokenizer_config.json; nothing where it is absent or says "no limit" (1e30).
  std::optional<int64_t> model_max_length() const { return model_max_length_; }
  // "wordpiece", "byte_bpe", "bpe", "unigram" or "fastbpe".
  const std::string& kind() const { return kind_; }

 protected:
  Tokenizer() = default;
  int32_t vocab_size_ = 0;
  SpecialIds special_;
  std::vector<int32_t> prefix_, suffix_;
  std::optional<PairTemplate> pair_;
  std::optional<int64_t> model_max_length_;
  std::string kind_;
};

// What keeps a model of so many token types (0: it is given none) and tokens from taking pairs, if anything does. `dir`
// is named.
std::optional<Error> why_no_pairs(const Tokenizer& tokenizer, const std::filesystem::path& dir, int64_t types,
                                  int64_t max_length);

}  // namespace brim::text
