// SPDX-License-Identifier: Apache-2.0
// Texts as a model takes them: ids, cut into windows no longer than it allows.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace brim::engine {

// One text, tokenized and cut into windows the model can take.
struct TokenizedText {
  struct Window {
    size_t begin;  // in the ids of the batch of texts
    int32_t length;
    int32_t first_content;  // index of its first content token within the whole text's content
  };
  size_t first_window = 0, windows = 0;
  int32_t tokens = 0;  // of the whole text
  bool truncated = false;
};

// Texts tokenized together; storage is reused.
struct TokenizedTexts {
  std::vector<int32_t> ids;
  std::vector<TokenizedText::Window> windows;
  std::vector<TokenizedText> texts;
  void clear() {
    ids.clear();
    windows.clear();
    texts.clear();
  }
};

}  // namespace brim::engine
