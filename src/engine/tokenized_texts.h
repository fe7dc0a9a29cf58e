// SPDX-License-Identifier: Apache-2.0
// Tokenized texts: ids, split into windows no longer than the model allows. Does not tokenize.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "batch/packed_batch.h"

namespace brim::engine {

class LabelTask;

// One text, tokenized and split into windows.
struct TokenizedText {
  struct Window {
    size_t begin;  // offset into the ids of all texts
    int32_t length;
    int32_t first_content;              // index of its first content token in the content of the whole text
    int32_t prompt_tokens = 0;          // leading tokens excluded from a mean over tokens
    int32_t first_word = 0, words = 0;  // entities by label: among those of its text
    size_t first_word_tokens = 0;       // entities by label: index in word_tokens
  };
  size_t first_window = 0, windows = 0;
  int32_t tokens = 0;  // in the whole text
  bool truncated = false;
  size_t first_word = 0, words = 0;  // entities by label: in the words of all texts
};

// Texts tokenized together; storage is reused.
struct TokenizedTexts {
  std::vector<int32_t> ids;
  std::vector<TokenizedText::Window> windows;
  std::vector<TokenizedText> texts;
  // A word of a text whose entities are found by label: bytes, code points, and tokens in the text's content.
  struct Word {
    size_t begin, end;
    int32_t first, last, token, tokens;
  };
  std::vector<Word> words;
  std::vector<batch::WordTokens> word_tokens;  // per window and word
  const LabelTask* zero_shot = nullptr;        // if set: the windows were made for its labels
  // The part of `results`, rows of `width` floats per window or per id, that belongs to text `t`.
  std::span<const float> results_of(size_t t, std::span<const float> results, size_t width, bool per_token) const {
    const TokenizedText& text = texts[t];
    if (!per_token) return results.subspan(text.first_window * width, text.windows * width);
    const TokenizedText::Window &first = windows[text.first_window],
                                &last = windows[text.first_window + text.windows - 1];
    const size_t end = last.begin + static_cast<size_t>(last.length);
    return results.subspan(first.begin * width, (end - first.begin) * width);
  }
  batch::Sequence sequence(size_t window, uint64_t ticket) const;  // part of a batch
  void clear() {
    ids.clear();
    windows.clear();
    texts.clear();
    words.clear();
    word_tokens.clear();
  }
};

}  // namespace brim::engine
