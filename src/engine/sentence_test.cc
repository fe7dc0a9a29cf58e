// SPDX-License-Identifier: Apache-2.0
// Tests embeddings of sentence-transformers directories against embeddings computed without their files.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/test_files.h"
#include "brim/brim.h"
#include "engine/testing.h"
#include "hub/sentence_testing.h"
#include "model/golden_models.h"

namespace brim::engine {
namespace {

using Vector = std::vector<float>;

class SentenceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const auto& dir : {plain_, dir_}) {
      model::put_golden_model(dir, "bert_sequence");
      put_file(dir / "tokenizer_config.json", R"({"do_lower_case":false})");
    }
  }
  std::shared_ptr<Scorer> open(const std::filesystem::path& dir, Pooling pooling) {
    ScorerOptions o = cpu_options(dir);
    o.pooling = pooling;
    return Scorer::open(o);
  }
  Vector plain(std::string_view text, Pooling pooling = Pooling::mean) {
    return open(plain_, pooling)->submit({.text = text}).get().embedding;
  }
  static void expect_near(const Vector& got, const Vector& want) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 2e-5) << i;
  }
  // Submits the text alone, with few and with many others: each uses a different code path.
  void expect_vector(const std::string& text, const Vector& want) {
    const auto scorer = open(dir_, Pooling::automatic);
    expect_near(scorer->submit({.text = text}).get().embedding, want);
    for (const size_t count : {size_t{3}, size_t{5000}}) {
      const std::vector<std::string_view> texts(count, text);
      const Predictions rows = scorer->score(texts);
      ASSERT_TRUE(rows.errors.empty());
      ASSERT_EQ(rows.width, want.size());
      expect_near({rows.scores.end() - static_cast<std::ptrdiff_t>(rows.width), rows.scores.end()}, want);
    }
  }
  // Mean over the tokens from `first` on.
  Vector mean_from(std::string_view text, size_t first) {
    const Prediction all = open(plain_, Pooling::none)->submit({.text = text}).get();
    const size_t n = static_cast<size_t>(all.vectors), width = all.embedding.size() / n;
    Vector mean(width);
    for (size_t t = first; t < n; ++t)
      for (size_t k = 0; k < width; ++k) mean[k] += all.embedding[t * width + k] / static_cast<float>(n - first);
    return mean;
  }

  const TempDir temp_;
  const std::filesystem::path plain_ = temp_ / "plain", dir_ = temp_ / "st";
};

TEST_F(SentenceTest, PoolsAccordingToTheFiles) {
  EXPECT_EQ(open(dir_, Pooling::automatic)->pooling(), Pooling::mean);
  expect_vector("w5 w6 w7", plain("w5 w6 w7"));
  hub::put_modules(dir_, hub::kClsPooling);
  EXPECT_EQ(open(dir_, Pooling::automatic)->pooling(), Pooling::cls);
  expect_vector("w5 w6 w7", plain("w5 w6 w7", Pooling::cls));
  expect_near(open(dir_, Pooling::mean)->submit({.text = "w5 w6 w7"}).get().embedding, plain("w5 w6 w7"));
}

TEST_F(SentenceTest, PrependsTheDefaultPrompt) {
  hub::put_modules(dir_, hub::kMeanPooling);
  put_file(dir_ / "config_sentence_transformers.json",
           R"({"prompts":{"query":"w9 w10 ","passage":"w11 "},"default_prompt_name":"query"})");
  expect_vector("w5 w6", plain("w9 w10 w5 w6"));
  const auto scorer = open(dir_, Pooling::automatic);
  const std::vector<std::string_view> texts = {"w5 w6"};
  expect_near(scorer->embed(texts, "w11 ").scores, plain("w11 w5 w6"));
  expect_near(scorer->embed(texts, "").scores, plain("w5 w6"));
  const Prompts prompts = find_prompts(dir_.string());
  EXPECT_EQ(prompts.default_name, "query");
  EXPECT_EQ(prompts.texts.at("passage"), "w11 ");
}

TEST_F(SentenceTest, PreparesBothTextsOfAPair) {
  hub::put_modules(dir_, hub::kMeanPooling);
  put_file(dir_ / "sentence_bert_config.json", R"({"do_lower_case":true})");
  const auto scorer = open(dir_, Pooling::automatic), bare = open(plain_, Pooling::mean);
  const std::vector<std::string_view> first = {"W5 w6"}, second = {"W7 w8"}, lower = {"w5 w6"},
                                      lower_second = {"w7 w8"}, prompted = {"w11 w5 w6"};
  const Vector pair = bare->score_pairs(lower, lower_second).scores;
  expect_near(scorer->score_pairs(first, second).scores, pair);
  expect_near(scorer->embed_pairs(first, second, "").scores, pair);
  expect_near(scorer->embed_pairs(first, second, "W11 ").scores, bare->score_pairs(prompted, lower_second).scores);
  EXPECT_NE(pair, bare->score(lower).scores);
  hub::put_modules(dir_, R"({"pooling_mode_mean_tokens":true,"include_prompt":false})");
  const Vector rest = open(dir_, Pooling::automatic)->embed_pairs(first, second, "W11 ").scores;
  EXPECT_NE(rest, scorer->embed_pairs(first, second, "W11 ").scores);
}

TEST_F(SentenceTest, ExcludesThePromptFromTheMean) {
  hub::put_modules(dir_, R"({"pooling_mode_mean_tokens":true,"include_prompt":false})");
  expect_vector("w5 w6", plain("w5 w6"));
  put_file(dir_ / "config_sentence_transformers.json",
           R"({"prompts":{"query":"w9 w10 "},"default_prompt_name":"query"})");
  expect_vector("w5 w6", mean_from("w9 w10 w5 w6", 3));
  const std::vector<std::string_view> texts = {"w5 w6"};
  expect_near(open(dir_, Pooling::automatic)->embed(texts, "w11 ").scores, mean_from("w11 w5 w6", 2));
  put_file(dir_ / "sentence_bert_config.json", R"({"max_seq_length":3})");
  expect_vector("w5 w6", Vector(48, 0.0f));  // no tokens besides the prompt
}

TEST_F(SentenceTest, LowersCaseAndTruncates) {
  hub::put_modules(dir_, hub::kMeanPooling);
  expect_vector("W5 w6 w7 w8", plain("W5 w6 w7 w8"));
  put_file(dir_ / "sentence_bert_config.json", R"({"max_seq_length":5,"do_lower_case":true})");
  EXPECT_EQ(open(dir_, Pooling::automatic)->max_length(), 5);
  expect_vector("W5 w6 W7 w8", plain("w5 w6 w7"));
}

// Truncation comes after the Normalize module, so the shorter vector is not of length 1.
TEST_F(SentenceTest, NormalizesThenTruncates) {
  hub::put_modules(dir_, hub::kMeanPooling, {"Normalize"});
  Vector want = plain("w5 w6");
  double squares = 0;
  for (const float v : want) squares += static_cast<double>(v) * v;
  for (float& v : want) v /= static_cast<float>(std::sqrt(squares));
  expect_vector("w5 w6", want);
  put_file(dir_ / "config_sentence_transformers.json", R"({"truncate_dim":7})");
  want.resize(7);
  expect_vector("w5 w6", want);
  put_file(dir_ / "config_sentence_transformers.json", R"({"truncate_dim":700})");
  EXPECT_EQ(open(dir_, Pooling::automatic)->submit({.text = "w5"}).get().embedding.size(), 48u);
}

TEST_F(SentenceTest, RejectsUnsupportedModules) {
  hub::put_modules(dir_, hub::kMeanPooling, {"Dense"});
  for (const Pooling pooling : {Pooling::automatic, Pooling::mean})
    EXPECT_HAS(error_of(ErrorCode::bad_model, [&] { open(dir_, pooling); }), "`type` is Dense");
}

}  // namespace
}  // namespace brim::engine
