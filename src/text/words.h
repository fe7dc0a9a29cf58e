// SPDX-License-Identifier: Apache-2.0
// Joins the words of tagged data into one text and maps each word to a token of its encoding. Shared by training and
// evaluation, so that both use the same text and tokens.
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
  std::string text;  // separated by spaces, on one line: line ends within a word become spaces
  std::vector<WordSpan> words;
};
JoinedWords join_words(std::span<const std::string> words);

constexpr size_t kNoToken = SIZE_MAX;
// Index of each word's first token; kNoToken for a word without one (for example only control characters).
std::vector<size_t> first_tokens(const Encoding& encoding, std::span<const WordSpan> words);

}  // namespace brim::text
