// SPDX-License-Identifier: Apache-2.0
#include "text/words.h"

#include <algorithm>

#include "base/utf8.h"

namespace brim::text {

JoinedWords join_words(std::span<const std::string> words) {
  JoinedWords joined;
  int32_t at = 0;
  for (const std::string& word : words) {
    if (!joined.words.empty()) {
      joined.text += ' ';
      ++at;
    }
    const auto length = static_cast<int32_t>(count_code_points(word));
    joined.words.push_back({at, at + length});
    joined.text += word;
    at += length;
  }
  std::replace_if(
      joined.text.begin(), joined.text.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
  return joined;
}

std::vector<size_t> first_tokens(const Encoding& e, std::span<const WordSpan> words) {
  std::vector<size_t> first;
  size_t token = 0;
  for (const WordSpan& word : words) {
    // Only special tokens end at 0.
    while (token < e.offsets.size() && (e.offsets[token].second == 0 || e.offsets[token].second <= word.begin)) ++token;
    first.push_back(token < e.offsets.size() && e.offsets[token].first < word.end ? token : kNoToken);
  }
  return first;
}

}  // namespace brim::text
