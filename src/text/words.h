// SPDX-License-Identifier: Apache-2.0
// Words of tagged data as one text, and back: which token of the text's encoding speaks for which word. Training and
// evaluation share it, so that both see the same text and the same tokens whatever the words hold.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace brim::text {

struct WordSpan {
  int32_t begin, end;  // code points of the text
};

struct JoinedWords {
  std::string text;  // separated by spaces; one line, as line ends within a word become spaces
  std::vector<WordSpan> words;
};
JoinedWords join_words(std::span<const std::string> words);

constexpr size_t kNoToken = SIZE_MAX;
// Index of each word's first token; kNoToken for a word without one (nothing but control characters, say).
std::vector<size_t> first_tokens(const Encoding& encoding, std::span<const WordSpan> words);

}  // namespace brim::text
