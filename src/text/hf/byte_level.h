// SPDX-License-Identifier: Apache-2.0
// GPT-2's byte level: maps each byte to a printable code point so that a vocabulary of strings can represent any bytes,
// and splits a text into words before byte-pair merging.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "text/pipeline.h"

namespace brim::text {

// Code point for a byte (U+0120 "Ġ" for a space).
char32_t byte_level_char(uint8_t byte);
// Byte for a code point, or -1.
int byte_level_byte(char32_t c);
// "Ġthe" -> " the"; false if a code point maps to no byte.
bool from_byte_level(std::string_view token, std::string& bytes);

// The pattern as written in tokenizer.json.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// End of the pattern match that starts at `at`; `text` is valid UTF-8 and `at` lies inside it. Matches cover the text.
size_t gpt2_word_end(std::string_view text, size_t at);

// Replaces each byte of the text by its code point.
void to_byte_level(NormalizedText& text);

}  // namespace brim::text
