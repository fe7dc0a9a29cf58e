// SPDX-License-Identifier: Apache-2.0
#include "text/hf/byte_level.h"

#include <array>

#include "base/utf8.h"
#include "text/unicode/unicode.h"

namespace brim::text {
namespace {

constexpr bool stands_for_itself(int b) { return (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE; }

struct Tables {
  std::array<char32_t, 256> chars{};
  std::array<int16_t, 512> bytes{};
};

constexpr Tables make_tables() {
  Tables t;
  for (auto& b : t.bytes) b = -1;
  char32_t next = 256;
  for (int b = 0; b < 256; ++b) {
    const char32_t c = stands_for_itself(b) ? static_cast<char32_t>(b) : next++;
    t.chars[static_cast<size_t>(b)] = c;
    t.bytes[c] = static_cast<int16_t>(b);
  }
  return t;
}
constexpr Tables kTables = make_tables();

enum Kind : uint8_t { kLetter, kNumber, kSpace, kOther };

constexpr std::array<uint8_t, 128> make_ascii() {
  std::array<uint8_t, 128> kinds{};
  for (size_t c = 0; c < 128; ++c) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    kinds[c] = letter                                 ? kLetter
               : c >= '0' && c <= '9'                 ? kNumber
               : c == ' ' || (c >= '\t' && c <= '\r') ? kSpace
                                                      : kOther;
  }
  return kinds;
}
constexpr auto kAsciiKinds = make_ascii();

struct Char {
  Kind kind;
  uint32_t bytes;
};

Char wide_char_at(std::string_view text, size_t at) {
  const CodePoint p = decode_valid(text, at);
  const uint16_t properties = unicode::properties(p.value);
  const auto category = static_cast<unicode::Category>(properties & 31);
  const Kind kind = unicode::is_letter(category)               ? kLetter
                    : unicode::is_number(category)             ? kNumber
                    : (properties & unicode::kWhiteSpace) != 0 ? kSpace
                                                               : kOther;
  return {kind, static_cast<uint32_t>(p.bytes)};
}

inline Char char_at(std::string_view text, size_t at) {
  const auto c = static_cast<unsigned char>(text[at]);
  if (c < 128) [[likely]]
    return {static_cast<Kind>(kAsciiKinds[c]), 1};
  return wide_char_at(text, at);
}

// Length of 's 't 're 've 'm 'll 'd at `at`, or 0.
size_t contraction(std::string_view text, size_t at) {
  const std::string_view rest = text.substr(at + 1, 2);
  if (rest.empty()) return 0;
  switch (rest[0]) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return 2;
    case 'r':
    case 'v':
      return rest.size() == 2 && rest[1] == 'e' ? 3 : 0;
    case 'l':
      return rest.size() == 2 && rest[1] == 'l' ? 3 : 0;
    default:
      return 0;
  }
}

}  // namespace

char32_t byte_level_char(uint8_t byte) { return kTables.chars[byte]; }

int byte_level_byte(char32_t c) { return c < kTables.bytes.size() ? kTables.bytes[c] : -1; }

bool from_byte_level(std::string_view token, std::string& bytes) {
  bytes.clear();
  for (size_t i = 0; i < token.size();) {
    const CodePoint p = decode_valid(token, i);
    const int byte = byte_level_byte(p.value);
    if (byte < 0) return false;
    bytes.push_back(static_cast<char>(byte));
    i += static_cast<size_t>(p.bytes);
  }
  return true;
}

size_t gpt2_word_end(std::string_view text, size_t at) {
  if (text[at] == '\'') {
    if (const size_t length = contraction(text, at)) return at + length;
  }
  size_t i = at;
  Char c = char_at(text, i);
  if (c.kind == kSpace) {
    // A single plain space joins the word after it.
    const bool plain = text[i] == ' ';
    size_t next = i + c.bytes;
    if (next == text.size()) return next;
    Char after = char_at(text, next);
    if (after.kind != kSpace) {
      if (!plain) return next;
      i = next;
      c = after;
    } else {
      // A run of white space, without its last character if text follows.
      size_t last = next;
      do {
        last = next;
        next += after.bytes;
        if (next == text.size()) return next;
        after = char_at(text, next);
      } while (after.kind == kSpace);
      return last;
    }
  }
  const Kind kind = c.kind;
  do {
    i += c.bytes;
    if (i == text.size()) return i;
    c = char_at(text, i);
  } while (c.kind == kind);
  return i;
}

void to_byte_level(NormalizedText& text) {
  NormalizedText out = text.emptied();
  out.text.reserve(text.text.size() * 2);
  for (size_t i = 0; i < text.text.size(); ++i) {
    out.append(byte_level_char(static_cast<uint8_t>(text.text[i])), text.span_at(i));
  }
  text.swap(out);
}

}  // namespace brim::text
