// SPDX-License-Identifier: Apache-2.0
// Turns a text into VADER tokens: replaces emoji by their descriptions, splits at white space, strips punctuation like
// the reference, and looks up each word in a perfect-hash table of the lexicon and all words used in rules.
// Applies no rules: vader.cc does, on small integers instead of characters.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace brim::text::vader {

enum WordFlag : uint32_t {
  kLexicon = 1,
  kBooster = 2,
  kDampener = 4,
  kNegation = 8,
  kIdiomKey = 16,  // the rarest word of an idiom
  kBut = 32,
  kUpper = 64,  // str.isupper(); set on tokens, never in the table
};

#include "text/vader/named_words.inc"

// Word properties used by the rules, in one register: flags, a NamedWord or 0, and the valence in tenths.
struct Token {
  uint32_t bits = 0;

  constexpr Token() = default;
  constexpr Token(uint8_t flags, uint8_t named, int8_t valence)
      : bits(flags | named << 8 | static_cast<uint32_t>(static_cast<uint8_t>(valence)) << 16) {}
  bool is(uint32_t mask) const { return bits & mask; }
  uint8_t named() const { return static_cast<uint8_t>(bits >> 8); }
  int valence() const { return static_cast<int8_t>(bits >> 16); }
};

// Padded byte buffer, reused between texts.
struct TextBuffer {
  std::vector<char> bytes;
  size_t size = 0;

  char* room(size_t count);
  void pad();
  std::string_view text() const { return {bytes.data(), size}; }
};

// Reads the tokens of one text at a time. Buffers are reused between texts, so use one object per thread.
class TokenReader {
 public:
  // Accepts any bytes; invalid UTF-8 counts as U+FFFD.
  void read(std::string_view utf8);

  size_t count() const { return count_; }
  size_t upper_count() const { return upper_count_; }
  bool any(uint32_t flags) const { return any_flags_ & flags; }
  // Empty tokens surround the text, so that rules can look three tokens back and two ahead.
  const Token* words() const { return tokens_.data() + kBefore; }
  std::string_view described_text() const { return text_; }  // with emoji described
  void give_back_large_buffers();

 private:
  static constexpr size_t kBefore = 3;
  static constexpr size_t kAfter = 2;

  TextBuffer copy_, described_;
  std::string_view text_;
  std::vector<Token> tokens_;  // only grows, to avoid clearing tokens for each text
  size_t count_ = 0;
  size_t upper_count_ = 0;
  uint32_t any_flags_ = 0;
};

}  // namespace brim::text::vader
