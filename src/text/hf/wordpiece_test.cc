// SPDX-License-Identifier: Apache-2.0
#include "text/hf/wordpiece.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "base/error.h"
#include "base/utf8.h"

namespace brim::text {
namespace {

// Reference implementation: longest match by trying all lengths.
std::vector<int32_t> plain_wordpiece(const std::map<std::string, int32_t>& vocab, const std::string& word) {
  std::vector<int32_t> out;
  for (size_t at = 0; at < word.size();) {
    size_t end = word.size();
    for (; end > at; --end) {
      const auto found = vocab.find((at > 0 ? "##" : "") + word.substr(at, end - at));
      if (found == vocab.end()) continue;
      out.push_back(found->second);
      break;
    }
    if (end == at) return {vocab.at("[UNK]")};
    at = end;
  }
  return out;
}

TEST(WordPiece, MatchesTheReference) {
  std::mt19937 random(21);
  const std::string letters[] = {"a", "b", "c", "é", "中", "😂"};
  const auto text = [&](size_t most) {
    std::string out;
    for (size_t i = 1 + random() % most; i > 0; --i) out += letters[random() % (random() % 4 == 0 ? 6 : 3)];
    return out;
  };
  for (int round = 0; round < 30; ++round) {
    std::map<std::string, int32_t> vocab = {{"[UNK]", 0}};
    for (int i = 0; i < 200; ++i) {
      const std::string token = (random() % 2 == 0 ? "##" : "") + text(random() % 5 == 0 ? 25 : 6);
      vocab.emplace(token, static_cast<int32_t>(vocab.size()));
    }
    WordPieceConfig config;
    config.vocab.assign(vocab.begin(), vocab.end());
    const WordPieceModel model(config, "x");
    for (int i = 0; i < 300; ++i) {
      std::string word = text(30);
      if (random() % 3 == 0)
        word = std::next(vocab.begin(), static_cast<ptrdiff_t>(random() % vocab.size()))->first + word;
      std::vector<int32_t> ids;
      model.tokenize_ids(word, ids);
      ASSERT_EQ(ids, plain_wordpiece(vocab, word)) << word;
      std::vector<Token> tokens;
      model.tokenize(word, tokens);
      ASSERT_EQ(tokens.size(), ids.size());
      EXPECT_EQ(tokens.front().begin, 0u);
      EXPECT_EQ(tokens.back().end, word.size());
    }
  }
}

TEST(WordPiece, LongWordsAreUnknown) {
  WordPieceConfig config;
  config.vocab = {{"[UNK]", 0}, {"é", 1}, {"##é", 2}};
  config.max_input_chars_per_word = 100;
  const WordPieceModel model(config, "x");
  std::string word;
  for (int i = 0; i < 100; ++i) word += "é";
  std::vector<int32_t> ids;
  model.tokenize_ids(word, ids);
  EXPECT_EQ(ids.size(), 100u);  // counted in code points, not bytes
  ids.clear();
  model.tokenize_ids(word + "é", ids);
  EXPECT_EQ(ids, std::vector<int32_t>{0});
}

TEST(WordPiece, RequiresAnUnknownToken) {
  WordPieceConfig config;
  config.vocab = {{"a", 0}};
  try {
    const WordPieceModel model(config, "dir/vocab.txt");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::bad_model);
    EXPECT_NE(std::string(error.what()).find("dir/vocab.txt"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("[UNK]"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace brim::text
