// SPDX-License-Identifier: Apache-2.0
// GPT-2's byte level: every byte has a printable code point of its own, so that a vocabulary of strings can hold any
// bytes, and the pattern that cuts a text into words before byte-pair merging.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "text/pipeline.h"

namespace brim::text {

// The code point that stands for a byte (U+0120 "Ġ" for a space).
char32_t byte_level_char(uint8_t byte);
// The byte a code point stands for, or -1.
int byte_level_byte(char32_t c);
// "Ġthe" -> " the"; false if a code point stands for no byte.
bool from_byte_level(std::string_view token, std::string& bytes);

// The pattern as tokenizer.json writes it.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// End of the word of that pattern that starts at `at`, which must be inside the valid UTF-8. Words cover the text.
size_t gpt2_word_end(std::string_view text, size_t at);

// Each byte of pieces of `text` as its code point.
void to_byte_level(NormalizedText& text);

}  // namespace brim::text
