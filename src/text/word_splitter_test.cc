// SPDX-License-Identifier: Apache-2.0
// Tests word splitting against words found by Python's re module.
#include "text/word_splitter.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace brim::text {
namespace {

std::string split(std::string_view text) {
  std::vector<SplitWord> words;
  split_words(text, words);
  std::string joined;
  for (const SplitWord& w : words) {
    joined += (joined.empty() ? "" : "|") + std::string(text.substr(w.begin, w.end - w.begin));
    EXPECT_LT(w.first, w.last);
    EXPECT_LE(static_cast<size_t>(w.last - w.first), w.end - w.begin);
  }
  return joined;
}

TEST(WordSplitter, EqualsPython) {
  const std::pair<const char*, const char*> cases[] = {
      {"", ""},
      {" \t\x1c\u2003", ""},
      {"Ada lives, here.", "Ada|lives|,|here|."},
      {"x-ray a--b a-b-c -a- a_-_b _", "x-ray|a|-|-|b|a-b-c|-|a|-|a_-_b|_"},
      {"a- b", "a|-|b"},
      {"3.5% $AB", "3|.|5|%|$|AB"},
      {"<<ENT>>", "<|<|ENT|>|>"},
      {"हिन्दी", "ह|ि|न|्|द|ी"},
      {"½²Ⅷ٣ e\u0301x", "½²Ⅷ٣|e|\u0301|x"},
      {"東京-x", "東京-x"},
      {"😀a\u200b", "😀|a|\u200b"},
  };
  for (const auto& [text, words] : cases) EXPECT_EQ(split(text), words) << text;
}

// Random Unicode; tools/make_word_goldens.py writes the file.
TEST(WordSplitter, EqualsPythonOnRandomText) {
  std::ifstream golden(std::string(BRIM_SOURCE_DIR) + "/tests/data/words.jsonl");
  size_t texts = 0;
  for (std::string line; std::getline(golden, line); ++texts) {
    const nlohmann::json row = nlohmann::json::parse(line);
    const std::string text = row["text"];
    std::vector<SplitWord> words;
    split_words(text, words);
    std::vector<std::pair<int32_t, int32_t>> found;
    for (const SplitWord& word : words) found.emplace_back(word.first, word.last);
    EXPECT_EQ(found, (row["words"].get<std::vector<std::pair<int32_t, int32_t>>>())) << line;
  }
  EXPECT_EQ(texts, 400u);
}

TEST(WordSplitter, CountsCodePoints) {
  std::vector<SplitWord> words;
  split_words("é 😀 x-y", words);
  ASSERT_EQ(words.size(), 3u);
  EXPECT_EQ(words[1].first, 2);
  EXPECT_EQ(words[2].first, 4);
  EXPECT_EQ(words[2].last, 7);
}

}  // namespace
}  // namespace brim::text
