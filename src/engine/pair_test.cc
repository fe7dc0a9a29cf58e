// SPDX-License-Identifier: Apache-2.0
// Tests pairs of texts through the public interface against transformers' logits, and models that reject pairs.
#include <gtest/gtest.h>

#include <cmath>

#include "base/test_files.h"
#include "base/token.h"
#include "brim/brim.h"
#include "engine/engine.h"
#include "engine/testing.h"
#include "model/golden_models.h"

namespace brim::engine {
namespace {

class PairTest : public ::testing::Test {
 protected:
  std::string put(const char* model) {
    model::put_golden_model(temp_ / model, model);
    return (temp_ / model).string();
  }
  static ScorerOptions options(const std::string& dir) {
    ScorerOptions o = cpu_options(dir);
    o.raw_scores = true;
    return o;
  }
  // Words of a golden sequence [CLS] a [SEP] b [SEP].
  static std::pair<std::string, std::string> texts_of(const std::vector<int32_t>& tokens) {
    std::string texts[2];
    for (const int32_t token : tokens)
      if (id_of(token) >= 5) texts[type_of(token)] += "w" + std::to_string(id_of(token)) + " ";
    return {texts[0], texts[1]};
  }
  static void add_to_config(const std::string& dir, const std::string& key, const nlohmann::json& value) {
    nlohmann::json config = nlohmann::json::parse(get_file(dir + "/config.json"));
    config[key] = value;
    put_file(dir + "/config.json", config.dump());
  }
  const TempDir temp_;
};

TEST_F(PairTest, LogitsMatchTransformers) {
  for (const char* name : {"bert_pair", "bert_rerank"}) {
    const auto scorer = Scorer::open(options(put(name)));
    const auto golden = model::golden_json(name, "golden.json");
    std::vector<std::string> kept;
    std::vector<std::string_view> first, second;
    for (const auto& tokens : golden["ids"]) {
      const auto [a, b] = texts_of(tokens.get<std::vector<int32_t>>());
      kept.insert(kept.end(), {a, b});
    }
    for (size_t i = 0; i < kept.size(); i += 2) {
      first.push_back(kept[i]);
      second.push_back(kept[i + 1]);
    }
    const Predictions many = scorer->score_pairs(first, second);
    for (size_t i = 0; i < first.size(); ++i) {
      const auto want = golden["rows"][i][0].get<std::vector<float>>();
      const Prediction one = scorer->submit({.text = first[i], .raw_scores = true, .pair = second[i]}).get();
      ASSERT_EQ(one.scores.size(), want.size());
      EXPECT_EQ(one.tokens, static_cast<int32_t>(golden["ids"][i].size()));
      double sum = 0;
      for (const float logit : want) sum += std::exp(logit);
      for (size_t k = 0; k < want.size(); ++k) {
        EXPECT_NEAR(one.scores[k], want[k], 1e-5) << name << " " << i;
        const double score = want.size() == 1 ? 1 / (1 + std::exp(-want[k])) : std::exp(want[k]) / sum;
        EXPECT_NEAR(many.scores[i * want.size() + k], score, 1e-5) << name << " " << i;
      }
    }
  }
}

// Without raw_scores the device applies the head's activation.
TEST_F(PairTest, SingleLogitUsesASigmoidUnlessConfigured) {
  const std::string dir = put("bert_rerank");
  const auto score = [&] {
    ScorerOptions o = options(dir);
    o.raw_scores = false;
    return Scorer::open(o)->submit({.text = "w5 w6", .pair = "w7"}).get().score;
  };
  const float logit =
      Scorer::open(options(dir))->submit({.text = "w5 w6", .raw_scores = true, .pair = "w7"}).get().score;
  EXPECT_NEAR(score(), 1 / (1 + std::exp(-logit)), 1e-6);
  add_to_config(dir, "sentence_transformers", {{"activation_fn", "torch.nn.modules.linear.Identity"}});
  EXPECT_NEAR(score(), logit, 1e-6);
  EXPECT_NEAR(Scorer::open(options(dir))->submit({.text = "w5 w6", .pair = "w7"}).get().score, logit, 1e-6);
  add_to_config(dir, "sentence_transformers", {{"activation_fn", "torch.nn.modules.activation.Sigmoid"}});
  EXPECT_NEAR(score(), 1 / (1 + std::exp(-logit)), 1e-6);
  add_to_config(dir, "problem_type", "regression");
  EXPECT_NEAR(score(), logit, 1e-6);
}

TEST_F(PairTest, LongPairsAreTruncatedOrWindowed) {
  const auto scorer = Scorer::open(options(put("bert_pair")));
  std::string words;
  for (int i = 0; i < 60; ++i) words += " w" + std::to_string(5 + i);
  const auto scores = [&](std::string_view a, std::string_view b, LongText how) {
    return scorer->submit({.text = a, .long_text = how, .pair = b}).get();
  };
  const Prediction cut = scores("w5 w6", words, LongText::truncate);
  EXPECT_TRUE(cut.truncated);
  EXPECT_EQ(cut.tokens, 65);
  // 44 tokens: 3 special, 2 from the first text, 39 from this one
  const std::string kept = words.substr(0, words.find(" w44"));
  EXPECT_EQ(cut.scores, scores("w5 w6", kept, LongText::error).scores);
  EXPECT_EQ(scores("w5 w6", words, LongText::error).error->code(), ErrorCode::bad_data);
  const Prediction windows = scores("w5 w6", words, LongText::window_mean);
  EXPECT_FALSE(windows.truncated);
  const Prediction last = scores("w5 w6", words.substr(words.find(" w26")), LongText::error);
  for (size_t k = 0; k < 3; ++k) EXPECT_NEAR(windows.scores[k], (cut.scores[k] + last.scores[k]) / 2, 1e-6);
  // Windows of 39 words with the maximum overlap of 19; the last one is moved back.
  const Prediction shared =
      scorer->submit({.text = "w5 w6", .long_text = LongText::window_mean, .pair = words, .overlap = 1000}).get();
  const std::string middle = words.substr(words.find(" w25"), words.find(" w64") - words.find(" w25"));
  const Prediction second = scores("w5 w6", middle, LongText::error);
  for (size_t k = 0; k < 3; ++k)
    EXPECT_NEAR(shared.scores[k], (cut.scores[k] + second.scores[k] + last.scores[k]) / 3, 1e-6);
  EXPECT_TRUE(scores(words, words, LongText::window_max).truncated);
}

TEST_F(PairTest, ModelsWithoutPairsReportTheReason) {
  const std::string dir = put("bert_pair");
  const auto refused = [&](const std::string& model) {
    const Prediction p = Scorer::open(options(model))->submit({.text = "w5", .pair = "w6"}).get();
    if (p.error) {
      EXPECT_EQ(p.error->code(), ErrorCode::usage) << "nothing is wrong with the model";
    }
    return p.error ? std::string(p.error->what()) : "";
  };
  EXPECT_EQ(refused(dir), "");
  EXPECT_NE(refused("vader").find("do not support pairs"), std::string::npos);
  EXPECT_NE(refused(put("bert_token")).find("taggers do not support pairs"), std::string::npos);
  // RoBERTa's table has one row; BERT's vocabulary has two token types for pairs.
  const std::string roberta = put("roberta_sequence");
  EXPECT_NE(refused(roberta).find("token type 1"), std::string::npos) << refused(roberta);
  put_file(roberta + "/tokenizer_config.json", R"({"model_input_names": ["input_ids", "attention_mask"]})");
  EXPECT_EQ(refused(roberta), "");
  EXPECT_EQ(refused(put("distilbert_sequence")), "");  // takes no token types
}

}  // namespace
}  // namespace brim::engine
