// SPDX-License-Identifier: Apache-2.0
// Tests zero-shot classification against transformers' pipeline (tools/make_zero_shot_goldens.py), and its limits.
#include "engine/zero_shot.h"

#include <gtest/gtest.h>

#include <fstream>
#include <future>
#include <nlohmann/json.hpp>

#include "base/test_files.h"
#include "brim/brim.h"
#include "engine/engine.h"
#include "engine/testing.h"
#include "model/golden_models.h"

namespace brim::engine {
namespace {

using nlohmann::json;

class ZeroShotTest : public ::testing::Test {
 protected:
  // bert_pair with these labels.
  std::string nli(const std::vector<std::string>& labels, const char* model = "bert_pair") {
    const auto dir = temp_ / "nli";
    model::put_golden_model(dir, model);
    json config = json::parse(get_file(dir / "config.json"));
    config["id2label"] = json::object();
    for (size_t i = 0; i < labels.size(); ++i) config["id2label"][std::to_string(i)] = labels[i];
    config.erase("label2id");
    put_file(dir / "config.json", config.dump());
    return dir.string();
  }
  static ScorerOptions options(const std::string& dir) {
    ScorerOptions o = cpu_options(dir);
    o.raw_scores = true;
    return o;
  }
  static ZeroShot request_of(const json& c) {
    ZeroShot request;
    c["labels"].get_to(request.labels);
    request.text_template = c.value("template", "This example is {}.");
    request.multi_label = c.value("multi_label", false);
    return request;
  }
  static void expect_near(std::span<const float> got, const json& want, float tolerance = 2e-5f) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t k = 0; k < want.size(); ++k) EXPECT_NEAR(got[k], want[k].get<float>(), tolerance) << k;
  }
  static std::vector<std::string_view> views(const std::vector<std::string>& texts) {
    return {texts.begin(), texts.end()};
  }
  const json golden_ = json::parse(std::ifstream(std::string(BRIM_SOURCE_DIR) + "/tests/data/zero_shot.json"));
  const std::vector<std::string> texts_ = golden_["texts"];
  const std::vector<std::string> usual_ = {"contradiction", "neutral", "entailment"};
  const TempDir temp_;
};

TEST_F(ZeroShotTest, ScoresEqualTransformers) {
  for (const json& c : golden_["cases"]) {
    SCOPED_TRACE(c["labels"].dump());
    const auto scorer = Scorer::open(options(nli(c["model_labels"])));
    const auto labels = scorer->prepare_labels(request_of(c));
    const Predictions many = scorer->classify(views(texts_), *labels);
    ASSERT_EQ(many.width, labels->labels().size());
    EXPECT_TRUE(many.errors.empty());
    for (size_t i = 0; i < texts_.size(); ++i) {
      expect_near({&many.scores[i * many.width], many.width}, c["scores"][i]);
      const Prediction one = scorer->submit({.text = texts_[i], .zero_shot = labels}).get();
      expect_near(one.scores, c["scores"][i]);
      EXPECT_EQ(one.label, labels->labels()[static_cast<size_t>(many.labels[i])]);
      EXPECT_EQ(one.score, *std::max_element(one.scores.begin(), one.scores.end()));
      EXPECT_EQ(one.truncated, texts_[i].size() > 100) << texts_[i];
    }
  }
}

TEST_F(ZeroShotTest, ScorerOpenedWithLabelsIsAClassifier) {
  for (const json& c : golden_["cases"]) {
    ScorerOptions o = options(nli(c["model_labels"]));
    o.raw_scores = false;
    o.zero_shot = request_of(c);
    const auto scorer = Scorer::open(o);
    EXPECT_EQ(scorer->labels(), o.zero_shot->labels);
    EXPECT_EQ(scorer->kind(), ModelKind::classifier);
    const Predictions many = scorer->score(views(texts_));
    for (size_t i = 0; i < texts_.size(); ++i) {
      expect_near({&many.scores[i * many.width], many.width}, c["scores"][i]);
      expect_near(scorer->submit({.text = texts_[i]}).get().scores, c["scores"][i]);
    }
  }
}

// Enough text for the pipeline instead of the caller's thread; progress counts texts.
TEST_F(ZeroShotTest, ManyTextsGiveTheSameScores) {
  const auto scorer = Scorer::open(options(nli(usual_)));
  const auto labels = scorer->prepare_labels({.labels = {"w10", "w20 w21", "w30"}});
  std::vector<std::string> texts;
  for (int i = 0; i < 1500; ++i) texts.push_back(texts_[static_cast<size_t>(i) % texts_.size()]);
  const Predictions few = scorer->classify(views(texts_), *labels);
  size_t last = 0;
  const Predictions many = scorer->classify(views(texts), *labels, {}, [&](size_t rows) { last = rows; });
  EXPECT_EQ(last, texts.size());
  EXPECT_TRUE(many.errors.empty());
  for (size_t i = 0; i < texts.size(); ++i)
    for (size_t k = 0; k < 3; ++k)
      ASSERT_NEAR(many.scores[i * 3 + k], few.scores[i % texts_.size() * 3 + k], 1e-6) << i;
}

TEST_F(ZeroShotTest, LongTextsAreTruncatedWindowedOrRejected) {
  const auto scorer = Scorer::open(options(nli(usual_)));
  const auto labels = scorer->prepare_labels({.labels = {"w10", "w20 w21"}, .text_template = "{}"});
  // 44 tokens: 3 special, 2 of the longest label, so parts of 39 words.
  std::string words;
  for (int i = 5; i < 5 + 60; ++i) words += " w" + std::to_string(i);
  const auto part = [&](int first, int last) {
    const size_t begin = words.find(" w" + std::to_string(first)), end = words.find(" w" + std::to_string(last));
    return words.substr(begin, end - begin);
  };
  const auto scores = [&](const std::string& text, LongText how, bool keep_end = false) {
    return scorer->submit({.text = text, .long_text = how, .keep_end = keep_end, .zero_shot = labels}).get();
  };
  const Prediction a = scores(part(5, 44), LongText::error),
                   b = scores(words.substr(words.find(" w26")), LongText::error);
  EXPECT_FALSE(a.truncated);
  EXPECT_EQ(a.tokens, 2 * (39 + 3) + 1 + 2);
  const Prediction mean = scores(words, LongText::window_mean), max = scores(words, LongText::window_max);
  for (size_t k = 0; k < 2; ++k) {
    EXPECT_NEAR(mean.scores[k], (a.scores[k] + b.scores[k]) / 2, 1e-6);
    EXPECT_NEAR(max.scores[k], std::max(a.scores[k], b.scores[k]), 1e-6);
  }
  const Prediction rejected = scores(words, LongText::error);
  ASSERT_TRUE(rejected.error);
  EXPECT_EQ(rejected.error->code(), ErrorCode::bad_data);
  EXPECT_TRUE(scores(words, LongText::truncate).truncated);
  EXPECT_NE(scores(words, LongText::truncate).scores, scores(words, LongText::truncate, true).scores);
}

TEST_F(ZeroShotTest, MaxLengthShortensTexts) {
  const auto scorer = Scorer::open(options(nli(usual_)));
  const auto labels = scorer->prepare_labels({.labels = {"w10", "w20 w21"}, .text_template = "{}"});
  EXPECT_EQ(labels->tokens_per_text(), 1 + 2);
  const auto score = [&](const std::string& text, int64_t max_length, LongText how = LongText::truncate) {
    return scorer->submit({.text = text, .long_text = how, .max_length = max_length, .zero_shot = labels}).get();
  };
  // 3 special tokens and a hypothesis: 4 words next to the first label, 3 next to the second.
  const Prediction cut = score("w5 w6 w7 w8 w9", 8), three = score("w5 w6 w7", 0), four = score("w5 w6 w7 w8", 0);
  EXPECT_TRUE(cut.truncated);
  EXPECT_NE(cut.scores, score("w5 w6 w7 w8 w9", 0).scores);
  EXPECT_EQ(score("w5 w6 w7", 8).scores, three.scores);
  EXPECT_FALSE(score("w5 w6 w7", 8).truncated);
  EXPECT_EQ(score("w5 w6 w7", 1000).scores, three.scores) << "limited by the model's maximum";
  EXPECT_TRUE(score("w5 w6 w7 w8", 8).truncated);
  EXPECT_NE(score("w5 w6 w7 w8", 8).scores, four.scores);
  const Prediction rejected = score("w5 w6 w7 w8", 8, LongText::error);
  ASSERT_TRUE(rejected.error);
  EXPECT_HAS(rejected.error->what(), "at most 3 fit");
  // Parts of at most three words.
  const Prediction parts = score("w5 w6 w7 w8 w9 w10", 8, LongText::window_max), end = score("w8 w9 w10", 0);
  for (size_t k = 0; k < 2; ++k) EXPECT_NEAR(parts.scores[k], std::max(three.scores[k], end.scores[k]), 1e-6);
  const Prediction none = score("w5", 5);
  ASSERT_TRUE(none.error);
  EXPECT_EQ(none.error->code(), ErrorCode::usage);
  EXPECT_HAS(none.error->what(), "`max_length=5`: must be above the 5 tokens of the longest label");
}

TEST_F(ZeroShotTest, RejectsInvalidLabelsAndTemplates) {
  const auto scorer = Scorer::open(options(nli(usual_)));
  const auto refused = [&](ZeroShot request, const char* part) {
    const std::string why = error_of(ErrorCode::usage, [&] { (void)scorer->prepare_labels(request); });
    EXPECT_NE(why.find(part), std::string::npos) << why;
  };
  refused({}, "candidate_labels: at least one label is required");
  refused({.labels = {"a", " "}}, "candidate_labels: label 2 is empty");
  refused({.labels = {"a", "b", "a"}}, "candidate_labels: duplicate label \"a\"");
  refused({.labels = {"a", "\xFF"}}, "candidate_labels: label 2 is not UTF-8");
  std::string endless;
  for (int i = 0; i < 50; ++i) endless += "w5 ";
  refused({.labels = {endless}}, "leaving none of 44 for the text");
  std::vector<std::string> many;
  for (int i = 0; i < 10000; ++i) many.push_back("label " + std::to_string(i));
  refused({.labels = many}, "10,000 labels, at most 1,000");
  for (const char* pattern : {"", "about", "{0}", "{x}", "{{}}", "{} and {}", "{", "}{", "{} {", "{ }", "{!r}"})
    refused({.labels = {"a"}, .text_template = pattern}, "hypothesis_template");
}

TEST_F(ZeroShotTest, RejectsModelsThatAreNoNliModels) {
  const auto open = [&](const std::string& dir) {
    ScorerOptions o = options(dir);
    o.zero_shot.emplace(ZeroShot{.labels = {"w5", "w6"}});
    return Scorer::open(o);
  };
  const auto why = [&](const std::string& dir) { return error_of(ErrorCode::bad_model, [&] { (void)open(dir); }); };
  const std::string classifier = why(nli({"negative", "neutral", "positive"}));
  EXPECT_NE(classifier.find("config.json"), std::string::npos) << classifier;
  EXPECT_NE(classifier.find("negative, neutral, positive"), std::string::npos) << classifier;
  EXPECT_NE(classifier.find("entailment"), std::string::npos) << classifier;
  (void)why(nli({"not_entailment", "neutral", "other"}));
  model::put_golden_model(temp_ / "tagger", "bert_token");
  (void)why(temp_ / "tagger");
  (void)why(nli({"entailment"}, "bert_rerank"));
  ScorerOptions rules;
  rules.model = "vader";
  EXPECT_NE(error_of(ErrorCode::usage, [&] { (void)Scorer::open(rules)->prepare_labels({.labels = {"a"}}); }), "");
}

TEST_F(ZeroShotTest, LabelsBelongToOneScorer) {
  const std::string dir = nli(usual_);
  const auto one = Scorer::open(options(dir)), other = Scorer::open(options(dir));
  const auto labels = one->prepare_labels({.labels = {"w5", "w6"}});
  const Prediction p = other->submit({.text = "w7", .zero_shot = labels}).get();
  ASSERT_TRUE(p.error);
  EXPECT_EQ(p.error->code(), ErrorCode::usage);
  const std::string_view text = "w7";
  EXPECT_NE(error_of(ErrorCode::usage, [&] { (void)other->classify({&text, 1}, *labels); }), "");
  ScorerOptions plain = options(dir);
  plain.raw_scores = false;
  const std::string why =
      error_of(ErrorCode::usage, [&] { (void)Scorer::open(plain)->prepare_labels({.labels = {"a"}}); });
  EXPECT_NE(why.find("raw_scores"), std::string::npos) << why;
}

TEST(NliClasses, FollowTransformers) {
  const auto classes = [](std::vector<std::string> labels) {
    const auto found = find_nli_classes(labels);
    return found ? std::pair<int, int>(static_cast<int>(found->entailment), static_cast<int>(found->contradiction))
                 : std::pair(-1, -1);
  };
  EXPECT_EQ(classes({"contradiction", "neutral", "entailment"}), std::pair(2, 0));
  EXPECT_EQ(classes({"ENTAILMENT", "NEUTRAL", "CONTRADICTION"}), std::pair(0, 2));
  EXPECT_EQ(classes({"entailment", "not_entailment"}), std::pair(0, 1));
  EXPECT_EQ(classes({"neutral", "Entailed", "contradiction"}), std::pair(1, 0));
  EXPECT_EQ(classes({"not_entailment", "entail"}), std::pair(1, 0));
  EXPECT_EQ(classes({"negative", "positive"}), std::pair(-1, -1));
  EXPECT_EQ(classes({"entailment"}), std::pair(-1, -1));
}

}  // namespace
}  // namespace brim::engine
