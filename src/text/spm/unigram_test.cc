// SPDX-License-Identifier: Apache-2.0
#include "text/spm/unigram.h"

#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "base/utf8.h"
#include "text/spm/prefix_trie.h"

namespace brim::text {
namespace {

using Vocab = std::vector<std::pair<std::string, double>>;

std::unique_ptr<TokenModel> unigram(Vocab vocab, int32_t unk_id = 0, bool byte_fallback = false) {
  return make_unigram({std::move(vocab), unk_id, byte_fallback}, "tokenizer.json: model");
}

// Formats tokens as "text:begin-end …" and checks that tokenize_ids agrees.
std::string cut(const TokenModel& model, std::string_view text) {
  std::vector<Token> tokens;
  std::vector<int32_t> ids;
  model.tokenize(text, tokens);
  model.tokenize_ids(text, ids);
  EXPECT_EQ(tokens.size(), ids.size());
  std::string out;
  for (size_t i = 0; i < tokens.size(); ++i) {
    EXPECT_EQ(tokens[i].id, ids[i]);
    const std::string_view surface = text.substr(tokens[i].begin, tokens[i].end - tokens[i].begin);
    out += fmt::format("{}{}:{}-{}", out.empty() ? "" : " ", model.token_text(tokens[i].id, surface), tokens[i].begin,
                       tokens[i].end);
  }
  return out;
}

TEST(Unigram, SelectsTheBestPath) {
  const auto model =
      unigram({{"<unk>", 0}, {"a", 0}, {"b", 0}, {"c", 0}, {"d", 0}, {"cd", 1}, {"ab", 2}, {"abc", 5}, {"abcd", 10}});
  EXPECT_EQ(cut(*model, "abcdacdxx"), "abcd:0-4 a:4-5 cd:5-7 xx:7-9");
  EXPECT_EQ(cut(*model, ""), "");
  EXPECT_EQ(cut(*model, "\u00E9"), "\u00E9:0-2");
  EXPECT_EQ(cut(*model, "x\u00E9y a"), "x\u00E9y :0-5 a:5-6");
  // The unknown token spelled out is an ordinary entry, and joins a run of unknown characters.
  EXPECT_EQ(cut(*model, "<unk>"), "<unk>:0-5");
  EXPECT_EQ(cut(*model, "x<unk>"), "x<unk>:0-6");
  EXPECT_EQ(model->id("abc"), 7);
  EXPECT_EQ(model->id("abx"), -1);
  EXPECT_EQ(model->token(8), "abcd");
  EXPECT_EQ(model->token(9), "");
  EXPECT_EQ(model->token(-1), "");
  EXPECT_EQ(model->vocab_size(), 9);
  EXPECT_EQ(model->unk_id(), 0);
}

TEST(Unigram, TiesKeepTheEarlierStart) {
  const auto model = unigram({{"<unk>", 0}, {"a", -1}, {"ab", -1}, {"b", -1}, {"c", -1}, {"bc", -1}, {"abc", -2}});
  EXPECT_EQ(cut(*model, "abc"), "abc:0-3");  // same score as ab c and a bc: abc starts first
  EXPECT_EQ(cut(*model, "abbc"), "ab:0-2 bc:2-4");
}

TEST(Unigram, LastOfEqualEntriesWins) {
  const auto model = unigram({{"<unk>", 0}, {"a", -1}, {"b", -1}, {"ab", 0}, {"ab", -9}});
  EXPECT_EQ(cut(*model, "ab"), "a:0-1 b:1-2");
  EXPECT_EQ(model->id("ab"), 4);
}

TEST(Unigram, EncodesUnknownRunsAsBytes) {
  Vocab vocab = {{"<unk>", 0}, {"a", -1}};
  for (int byte = 0; byte < 256; ++byte) vocab.emplace_back(fmt::format("<0x{:02X}>", byte), -2);
  const auto all = unigram(vocab, 0, true);
  EXPECT_EQ(cut(*all, "a\u00E9xa"), "a:0-1 <0xC3>:1-4 <0xA9>:1-4 <0x78>:1-4 a:4-5");
  vocab[2 + 0xA9].first = "gone";
  const auto some = unigram(vocab, 0, true);
  EXPECT_EQ(cut(*some, "a\u00E9xa"), "a:0-1 \u00E9x:1-4 a:4-5");
  EXPECT_EQ(cut(*some, "xa"), "<0x78>:0-1 a:1-2");
}

TEST(Unigram, ReportsInvalidModels) {
  const auto error_message = [](auto make) -> std::string {
    try {
      make();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::bad_model);
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(error_message([] { unigram({}); }), "tokenizer.json: model: the vocabulary is empty");
  EXPECT_NE(error_message([] { unigram({{"a", 0}}, 1); }).find("unk_id is 1"), std::string::npos);
  EXPECT_NE(error_message([] { unigram({{"a", NAN}}); }).find("entry 0 (a)"), std::string::npos);
  EXPECT_NE(error_message([] {
              std::vector<int32_t> ids;
              unigram({{"a", 0}}, -1)->tokenize_ids("ab", ids);
            }).find("no entry for \"b\""),
            std::string::npos);
}

// Reference implementation by dynamic programming.
double best_score(const Vocab& vocab, std::string_view text, double unknown) {
  std::vector<double> best(text.size() + 1, -1e300);
  best[0] = 0;
  for (size_t end = 1; end <= text.size(); ++end) {
    for (size_t begin = 0; begin < end; ++begin) {
      for (const auto& [entry, score] : vocab) {
        if (entry == text.substr(begin, end - begin)) best[end] = std::max(best[end], best[begin] + score);
      }
    }
    best[end] = std::max(best[end], best[end - 1] + unknown);
  }
  return best[text.size()];
}

TEST(Unigram, ScoresLikeBruteForce) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    Vocab vocab = {{"<unk>", 0}};
    double lowest = 0;
    std::map<std::string, double> seen;
    for (int i = 0; i < 30; ++i) {
      std::string entry;
      for (size_t n = 1 + random() % 4; entry.size() < n;) entry.push_back(static_cast<char>('a' + random() % 4));
      seen[entry] = -static_cast<double>(random() % 1000) / 100;
    }
    for (const auto& entry : seen) vocab.push_back(entry);
    for (const auto& entry : vocab) lowest = std::min(lowest, entry.second);
    const auto model = unigram(vocab);
    std::string text;
    for (size_t n = random() % 20; text.size() < n;) text.push_back(static_cast<char>('a' + random() % 5));
    std::vector<Token> tokens;
    model->tokenize(text, tokens);
    double score = 0;
    size_t at = 0;
    for (const Token& token : tokens) {
      EXPECT_EQ(token.begin, at);
      at = token.end;
      score += token.id == 0 ? (lowest - 10) * (token.end - token.begin) : vocab[token.id].second;
    }
    EXPECT_EQ(at, text.size());
    EXPECT_NEAR(score, best_score(vocab, text, lowest - 10), 1e-9) << text;
  }
}

TEST(Unigram, LongWordsStayLinear) {
  const auto model = unigram({{"<unk>", 0}, {"a", -1}, {"aa", -1.5}, {"aaaa", -2}});
  const std::string word(300000, 'a');
  std::vector<int32_t> ids;
  model->tokenize_ids(word, ids);
  EXPECT_EQ(ids, std::vector<int32_t>(75000, 3));
  ids.clear();
  model->tokenize_ids(std::string(300000, 'z'), ids);
  EXPECT_EQ(ids, std::vector<int32_t>{0});
}

TEST(PrefixTrie, FindsEveryPrefix) {
  std::mt19937 random(3);
  std::vector<std::string> keys = {"", std::string(1, '\0'), std::string("\0\0", 2), "a", "a"};
  for (int i = 0; i < 5000; ++i) {
    std::string key;
    for (size_t n = random() % 7; key.size() < n;) key.push_back(static_cast<char>(random() % 6 * 50));
    keys.push_back(key);
  }
  for (int c = 0; c < 256; ++c) keys.emplace_back(1, static_cast<char>(c));
  const std::vector<std::string_view> views(keys.begin(), keys.end());
  const PrefixTrie trie(views);
  std::map<std::string, int32_t> map;
  for (size_t i = 0; i < keys.size(); ++i) map[keys[i]] = static_cast<int32_t>(i);
  for (int i = 0; i < 2000; ++i) {
    std::string text;
    for (size_t n = random() % 9; text.size() < n;) text.push_back(static_cast<char>(random() % 6 * 50));
    std::vector<std::pair<int32_t, size_t>> got, want;
    trie.walk(text, [&](int32_t id, size_t length) { got.emplace_back(id, length); });
    for (size_t n = 1; n <= text.size(); ++n) {
      const auto found = map.find(text.substr(0, n));
      if (found != map.end()) want.emplace_back(found->second, n);
    }
    EXPECT_EQ(got, want);
    const auto found = map.find(text);
    EXPECT_EQ(trie.find(text), text.empty() || found == map.end() ? -1 : found->second);
  }
  EXPECT_EQ(PrefixTrie().find("a"), -1);
}

}  // namespace
}  // namespace brim::text
