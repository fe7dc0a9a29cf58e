// SPDX-License-Identifier: Apache-2.0
#include "text/hf/bpe.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "base/error.h"
#include "base/utf8.h"
#include "text/hf/byte_level.h"

namespace brim::text {
namespace {

// Reference implementation: merge the leftmost pair of lowest rank until none is left.
std::vector<std::string> plain_bpe(std::vector<std::string> symbols,
                                   const std::vector<std::pair<std::string, std::string>>& merges) {
  std::map<std::pair<std::string, std::string>, size_t> ranks;
  for (size_t i = 0; i < merges.size(); ++i) ranks[merges[i]] = i;
  for (;;) {
    size_t best = SIZE_MAX, at = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto found = ranks.find({symbols[i], symbols[i + 1]});
      if (found != ranks.end() && found->second < best) {
        best = found->second;
        at = i;
      }
    }
    if (best == SIZE_MAX) return symbols;
    symbols[at] += symbols[at + 1];
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(at) + 1);
  }
}

// Letters a to e and random merges of existing tokens.
BpeConfig random_config(std::mt19937& random, size_t merges) {
  BpeConfig config;
  std::vector<std::string> tokens = {"a", "b", "c", "d", "e"};
  while (config.merges.size() < merges) {
    const std::string &left = tokens[random() % tokens.size()], &right = tokens[random() % tokens.size()];
    const std::string joined = left + right;
    const auto same = [&](const auto& m) { return m.first == left && m.second == right; };
    if (joined.size() > 12 || std::any_of(config.merges.begin(), config.merges.end(), same)) continue;
    config.merges.emplace_back(left, right);
    if (std::find(tokens.begin(), tokens.end(), joined) == tokens.end()) tokens.push_back(joined);
  }
  for (const std::string& t : tokens) config.vocab.emplace_back(t, static_cast<int32_t>(config.vocab.size()));
  return config;
}

std::vector<std::string> tokens_of(const TokenModel& model, std::string_view piece) {
  std::vector<Token> tokens;
  model.tokenize(piece, tokens);
  std::vector<std::string> out;
  uint32_t at = 0;
  for (const Token& t : tokens) {
    EXPECT_EQ(t.begin, at);
    at = t.end;
    out.emplace_back(model.token(t.id));
  }
  std::vector<int32_t> ids;
  model.tokenize_ids(piece, ids);
  EXPECT_EQ(ids.size(), tokens.size());
  for (size_t i = 0; i < std::min(ids.size(), tokens.size()); ++i) EXPECT_EQ(ids[i], tokens[i].id);
  return out;
}

TEST(Bpe, MatchesTheReferenceAtEveryLength) {
  std::mt19937 random(11);
  for (int round = 0; round < 60; ++round) {
    const BpeConfig config = random_config(random, 5 + random() % 60);
    const auto model = make_bpe(config, "x");
    for (const size_t length : {1, 2, 3, 7, 20, 47, 48, 49, 50, 200}) {
      std::string word;
      std::vector<std::string> symbols;
      for (size_t i = 0; i < length; ++i) {
        const char c = static_cast<char>('a' + random() % 5);
        word += c;
        symbols.emplace_back(1, c);
      }
      ASSERT_EQ(tokens_of(*model, word), plain_bpe(symbols, config.merges)) << word;
    }
  }
}

TEST(Bpe, LongWordsAreNotQuadratic) {
  std::mt19937 random(5);
  const BpeConfig config = random_config(random, 60);
  const auto model = make_bpe(config, "x");
  std::string word;
  for (int i = 0; i < 300000; ++i) word += static_cast<char>('a' + random() % 5);
  std::vector<int32_t> ids;
  model->tokenize_ids(word, ids);
  std::string joined;
  for (const int32_t id : ids) joined += model->token(id);
  EXPECT_EQ(joined, word);
}

TEST(Bpe, RawBytesMatchByteLevelText) {
  std::mt19937 random(9);
  BpeConfig config;
  const auto token = [](std::string_view bytes) {
    std::string out;
    for (const char b : bytes) append_utf8(out, byte_level_char(static_cast<uint8_t>(b)));
    return out;
  };
  for (int b = 0; b < 256; ++b) config.vocab.emplace_back(token(std::string(1, static_cast<char>(b))), b);
  for (const char* merge : {" t", "he", "\xC3\xA9", "ab"}) {
    config.merges.emplace_back(token({merge, 1}), token({merge + 1, 1}));
    config.vocab.emplace_back(token({merge, 2}), static_cast<int32_t>(config.vocab.size()));
  }
  config.merges.emplace_back(token(" t"), token("he"));
  config.vocab.emplace_back(token(" the"), static_cast<int32_t>(config.vocab.size()));
  config.vocab.emplace_back(token("abab"), static_cast<int32_t>(config.vocab.size()));
  for (const bool ignore_merges : {false, true}) {
    config.ignore_merges = ignore_merges;
    const BpeModel model(config, "x");
    ASSERT_TRUE(model.byte_level());
    for (const std::string word : {"a", " the", "abab", "é", " theé", "\xFF\x80", "😂", ""}) {
      std::vector<int32_t> raw, text;
      model.tokenize_bytes(word, raw);
      model.tokenize_ids(token(word), text);
      EXPECT_EQ(raw, text) << word;
    }
    std::vector<int32_t> ids;
    model.tokenize_bytes("abab", ids);
    EXPECT_EQ(ids.size(), ignore_merges ? 1u : 2u);
  }
}

TEST(Bpe, RejectsInvalidModels) {
  const auto message = [](const BpeConfig& config) -> std::string {
    try {
      make_bpe(config, "dir/tokenizer.json");
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::bad_model);
      return error.what();
    }
    return "accepted";
  };
  const auto has = [&](const BpeConfig& config, std::initializer_list<const char*> words) {
    const std::string text = message(config);
    for (const char* word : words) EXPECT_NE(text.find(word), std::string::npos) << word << " is not in: " << text;
  };
  BpeConfig config;
  config.vocab = {{"a", 0}, {"b", 1}, {"ab", 2}};
  config.merges = {{"a", "b"}};
  EXPECT_EQ(message(config), "accepted");
  BpeConfig bad = config;
  bad.vocab[2].second = 1;
  has(bad, {"dir/tokenizer.json", "id 1", "\"b\"", "\"ab\""});
  bad = config;
  bad.vocab[2].second = -4;
  has(bad, {"\"ab\"", "-4"});
  bad = config;
  bad.vocab[2].second = 1 << 30;
  has(bad, {"\"ab\"", "1073741824"});
  bad = config;
  bad.merges.emplace_back("b", "a");
  has(bad, {"merge 1", "b a", "\"ba\"", "not in the vocabulary"});
  bad = config;
  bad.merges.emplace_back("a", "x");
  has(bad, {"\"x\""});
  bad = config;
  bad.unk_token = "<unk>";
  has(bad, {"<unk>", "3 tokens"});
}

}  // namespace
}  // namespace brim::text
