// SPDX-License-Identifier: Apache-2.0
// The fastBPE layout (bpe.codes and vocab.txt) of PhoBERT and BERTweet: words between white space are split into
// characters and merged by rank; every part but the last is marked with "@@". Ids and tokens equal those of
// transformers' PhobertTokenizer and BertweetTokenizer.
// No offsets: the reference has no fast tokenizer.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace brim::text {

class FastBpe {
 public:
  // Contents of the two files; `specials` get ids 0, 1, … before the vocabulary. Throws Error(bad_model) with the file
  // name and line if a vocabulary line has no count or the text is not UTF-8.
  FastBpe(std::string_view codes, const std::filesystem::path& codes_file, std::string_view vocab,
          const std::filesystem::path& vocab_file, const std::vector<std::string>& specials, const std::string& unk);

  // Makes tokenize return `id` for parts equal to `token`, overriding the vocabulary.
  void add_token(const std::string& token, int32_t id);

  // Appends the ids of a text without added tokens.
  void tokenize(std::string_view text, std::vector<int32_t>& out) const;

  int32_t id(std::string_view token) const;  // -1 if missing
  std::string_view token(int32_t id) const;  // empty if missing
  int32_t unk_id() const { return unk_id_; }
  size_t size() const { return vocab_.size(); }       // distinct tokens; new ids start here
  int32_t vocab_size() const { return vocab_size_; }  // largest id plus one

 private:
  // A symbol is a string used in merges, or a character of the vocabulary.
  struct Symbol {
    int32_t inner_id, final_id;  // token id inside a word ("ab@@") and at its end ("ab</w>" is "ab")
  };
  struct Merge {
    uint64_t key = UINT64_MAX;  // left symbol << 32 | right symbol
    int32_t rank = 0, symbol = 0;
  };
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  template <class Value>
  using TextMap = std::unordered_map<std::string, Value, Hash, std::equal_to<>>;

  static constexpr int32_t kNoSymbol = -1;
  static constexpr size_t kShortWord = 40;  // in characters; longer words are merged with a queue

  void read_vocab(std::string_view vocab, const std::filesystem::path& file);
  void read_codes(std::string_view codes, const std::filesystem::path& file);
  int32_t symbol(const std::string& text);
  void note_character(std::string_view text, int32_t symbol);
  size_t merge_slot(uint64_t key) const;
  const Merge* find_merge(int32_t left, int32_t right) const;
  void tokenize_word(std::string_view word, std::vector<int32_t>& out) const;
  void merge_by_scan(std::vector<int32_t>& symbols) const;
  void merge_by_queue(std::vector<int32_t>& symbols) const;

  TextMap<int32_t> vocab_;
  std::vector<std::string> tokens_;  // by id
  TextMap<int32_t> symbol_ids_;
  std::vector<Symbol> symbols_;
  std::vector<Merge> merges_;  // open addressing, a power of two, at most half full
  std::unordered_map<char32_t, std::pair<int32_t, int32_t>> characters_;  // symbols inside and at the end of a word
  int32_t unk_id_ = -1, vocab_size_ = 0;
};

}  // namespace brim::text
