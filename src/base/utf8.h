// SPDX-License-Identifier: Apache-2.0
// UTF-8 decoding and encoding, and replacement of invalid bytes by U+FFFD exactly like Python's bytes.decode("utf-8",
// errors="replace") (one U+FFFD per maximal ill-formed subpart).
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace brim {

struct CodePoint {
  char32_t value;
  int bytes;  // length in the input; 0 at the end
};

// Decodes the code point at text[at], which must be valid UTF-8.
inline CodePoint decode_valid(std::string_view text, size_t at) {
  auto b = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const unsigned char c = b(0);
  if (c < 0x80) return {c, 1};
  if (c < 0xE0) return {static_cast<char32_t>((c & 0x1F) << 6 | (b(1) & 0x3F)), 2};
  if (c < 0xF0) return {static_cast<char32_t>((c & 0x0F) << 12 | (b(1) & 0x3F) << 6 | (b(2) & 0x3F)), 3};
  return {static_cast<char32_t>((c & 0x07) << 18 | (b(1) & 0x3F) << 12 | (b(2) & 0x3F) << 6 | (b(3) & 0x3F)), 4};
}

void append_utf8(std::string& out, char32_t code_point);
size_t valid_utf8_prefix(std::string_view text);  // bytes before the first ill-formed one, or all
bool is_valid_utf8(std::string_view text);
std::string replace_invalid_utf8(std::string_view text);
size_t count_code_points(std::string_view valid_utf8);

}  // namespace brim
