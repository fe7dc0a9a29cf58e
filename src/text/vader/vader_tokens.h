// SPDX-License-Identifier: Apache-2.0
// From a text to VADER's tokens: emoji replaced by their descriptions, split at white space, punctuation stripped as
// the reference does it, and each word looked up in one perfect-hash table that holds the lexicon and every word a rule
// names. The rules (vader.cc) then compare small integers and never see a character.
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

// What the rules know of a word, in one register: flags, then a NamedWord or 0, then the valence in tenths.
struct Token {
  uint32_t bits = 0;

  constexpr Token() = default;
  constexpr Token(uint8_t flags, uint8_t named, int8_t valence)
      : bits(flags | named << 8 | static_cast<uint32_t>(static_cast<uint8_t>(valence)) << 16) {}
  bool is(uint32_t mask) const { return bits & mask; }
  uint8_t named() const { return static_cast<uint8_t>(bits >> 8); }
  int valence() const { return static_cast<int8_t>(bits >> 16); }
};

// Bytes with room behind them; they keep their place between texts.
struct TextBuffer {
  std::vector<char> bytes;
  size_t size = 0;

  char* room(size_t count);
  void pad();
  std::string_view text() const { return {bytes.data(), size}; }
};

// The tokens of one text at a time. Buffers are kept from text to text, so an object serves one thread.
class TokenReader {
 public:
  // Any bytes; invalid UTF-8 counts as U+FFFD.
  void read(std::string_view utf8);

  size_t count() const { return count_; }
  size_t upper_count() const { return upper_count_; }
  bool any(uint32_t flags) const { return any_flags_ & flags; }
  // Blank tokens stand before the first and behind the last, so that rules may look three back and two ahead.
  const Token* words() const { return tokens_.data() + kBefore; }
  std::string_view described_text() const { return text_; }  // with emoji described
  void give_back_large_buffers();

 private:
  static constexpr size_t kBefore = 3;
  static constexpr size_t kAfter = 2;

  TextBuffer copy_, described_;
  std::string_view text_;
  std::vector<Token> tokens_;  // only grows, so that tokens are not cleared for each text
  size_t count_ = 0;
  size_t upper_count_ = 0;
  uint32_t any_flags_ = 0;
};

}  // namespace brim::text::vader
