// SPDX-License-Identifier: Apache-2.0
// Public interface of the tokenizers: loads a directory and turns text into token ids. Ids, tokens and offsets equal
// those of Hugging Face's fast tokenizers. encode_ids is the fast variant without offsets; encode keeps everything.
// Truncation and padding are left to the caller (prefix() and suffix() return the tokens around a text).
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

// One text, special tokens included. Offsets are [begin, end) in Unicode code points of the text (after replacing
// invalid bytes by U+FFFD); special tokens have (0, 0). The fastBPE layout has no offsets: the vector is empty.
struct Encoding {
  std::vector<int32_t> ids;
  std::vector<std::string> tokens;
  std::vector<std::pair<int32_t, int32_t>> offsets;
};

// Ids of tokens with a role; -1 if the tokenizer has none.
struct SpecialIds {
  int32_t cls = -1, sep = -1, pad = -1, unk = -1, mask = -1, bos = -1, eos = -1;
};

// Template that joins two texts: typed tokens before the first, between them, and after the second.
struct PairTemplate {
  std::vector<int32_t> before, between, after;
  int32_t first_type = 0, second_type = 0;
  size_t special() const { return before.size() + between.size() + after.size(); }
  int32_t largest_type() const;
};

// Token counts of two texts after truncation to `room` in total: the longer one is cut first (transformers'
// longest_first).
struct PairLengths {
  int64_t first, second;
};
PairLengths fit_pair(int64_t first, int64_t second, int64_t room);

class Tokenizer {
 public:
  // Reads tokenizer.json, else *.model, vocab.json + merges.txt, bpe.codes + vocab.txt, or vocab.txt; the file layout
  // determines the family. tokenizer_config.json and special_tokens_map.json are used if present. Throws
  // Error(bad_model) that names file, location and value.
  static std::unique_ptr<Tokenizer> load(const std::filesystem::path& dir);

  virtual ~Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Appends the ids of `text` to `out`, special tokens included, never truncated. Accepts any bytes: invalid UTF-8
  // becomes U+FFFD as with Python's errors="replace". Both functions are thread-safe.
  virtual void encode_ids(std::string_view text, std::vector<int32_t>& out) const = 0;
  virtual Encoding encode(std::string_view text) const = 0;

  // Vocabulary text of an id (not decoded: "##ing", "Ġthe"); empty for an unknown id.
  virtual std::string token(int32_t id) const = 0;
  virtual int32_t id(std::string_view token) const = 0;  // -1 if missing
  // Converts ids back to text like Hugging Face's decode(); unknown ids are skipped. Normalization is not reversed.
  virtual std::string decode(std::span<const int32_t> ids, bool skip_special) const = 0;

  // Largest id plus one: the minimum number of embedding rows.
  int32_t vocab_size() const { return vocab_size_; }
  const SpecialIds& special() const { return special_; }
  int32_t cls_id() const { return special_.cls; }
  int32_t sep_id() const { return special_.sep; }
  int32_t pad_id() const { return special_.pad; }
  int32_t unk_id() const { return special_.unk; }
  int32_t mask_id() const { return special_.mask; }

  // Tokens before and after every text; a window of a long text is prefix + part of the content + suffix.
  std::span<const int32_t> prefix() const { return prefix_; }
  std::span<const int32_t> suffix() const { return suffix_; }

  // nullopt if the post-processor does not support pairs or puts no token between the two texts.
  const std::optional<PairTemplate>& pair() const { return pair_; }
  // Appends the typed tokens of two texts, truncated to `longest` tokens like transformers' longest_first; `longest`
  // must exceed the number of special tokens. `keep_end` truncates at the start instead of the end. Returns the
  // number of tokens before truncation. Requires pair().
  int64_t encode_pair(std::string_view first, std::string_view second, int64_t longest, bool keep_end,
                      std::vector<int32_t>& out) const;
  // Building blocks of encode_pair for other truncation strategies. content_ids replaces `out` by the ids of a text
  // without special tokens.
  void content_ids(std::string_view text, std::vector<int32_t>& out) const;
  // Appends the typed ids of two texts, with the template's tokens around them.
  void join_pair(std::span<const int32_t> first, std::span<const int32_t> second, std::vector<int32_t>& out) const;

  // From tokenizer_config.json; nullopt if missing or "no limit" (1e30).
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

// Reason why a model with this many token types (0: none) and tokens cannot take pairs; nullopt if it can. `dir` is
// used in messages.
std::optional<Error> why_no_pairs(const Tokenizer& tokenizer, const std::filesystem::path& dir, int64_t types,
                                  int64_t max_length);

}  // namespace brim::text
