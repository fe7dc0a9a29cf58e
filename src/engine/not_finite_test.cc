// SPDX-License-Identifier: Apache-2.0
// Tests models that compute NaN or infinity: affected texts fail for every output, and other texts keep their results.
// Numeric accuracy is tested elsewhere.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/test_files.h"
#include "brim/brim.h"
#include "engine/testing.h"
#include "hub/edit_weight.h"
#include "model/golden_models.h"

namespace brim::engine {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();

class NotFinite : public ::testing::Test {
 protected:
  ScorerOptions options(const std::string& model, const std::string& name) {
    const auto dir = temp_.path() / name;
    if (!std::filesystem::exists(dir)) model::put_golden_model(dir, model);
    return cpu_options(dir);
  }
  // Only texts with the word w7 are affected by the NaN.
  ScorerOptions damaged(const std::string& model, const std::string& prefix = "bert.") {
    const ScorerOptions o = options(model, model + "_damaged");
    hub::edit_weight(o.model, prefix + "embeddings.word_embeddings.weight", 7 * 48, kNan);
    return o;
  }
  static void expect_failed(const std::optional<Error>& error) {
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::bad_model);
    EXPECT_EQ(error->problem(), "the model's output is not finite");
    EXPECT_FALSE(error->remedy().empty());
  }

  const TempDir temp_;
  const std::vector<std::string_view> texts_ = {"w5 w6", "w9 w7 w8", "w9 w10 w11"};
};

// Few texts are scored on the caller's thread, many by the pipeline.
TEST_F(NotFinite, FailsOneRowOfManyTexts) {
  std::vector<std::string> kept;
  for (size_t i = 0; i < 6000; ++i) kept.emplace_back(i == 4000 ? "w7 w5" : i % 2 == 0 ? "w5 w6" : "w9 w10 w11");
  const std::vector<std::string_view> many(kept.begin(), kept.end());
  const auto scorer = Scorer::open(damaged("bert_sequence")), sound = Scorer::open(options("bert_sequence", "sound"));
  const Predictions few = scorer->score(texts_), all = scorer->score(many), want = sound->score(texts_);
  ASSERT_EQ(few.errors.size(), 1u);
  EXPECT_EQ(few.errors[0].first, 1u);
  expect_failed(few.errors[0].second);
  EXPECT_EQ(few.labels[1], -1);
  ASSERT_EQ(all.errors.size(), 1u);
  EXPECT_EQ(all.errors[0].first, 4000u);
  expect_failed(all.errors[0].second);
  EXPECT_EQ(all.labels[4000], -1);
  for (const Predictions* p : {&few, &all})
    for (const float score : p->scores) EXPECT_TRUE(std::isfinite(score));
  for (const size_t row : {size_t{0}, size_t{2}}) EXPECT_EQ(few.label_scores[row], want.label_scores[row]);
  EXPECT_EQ(scorer->load().not_finite_texts, 2);
  EXPECT_EQ(sound->load().not_finite_texts, 0);
}

TEST_F(NotFinite, FailsSubmittedTextsOfEveryKindOfModel) {
  std::vector<ScorerOptions> models = {damaged("bert_sequence"), damaged("bert_token"), damaged("bert_rerank"),
                                       damaged("bert_multilabel")};
  for (const Pooling pooling : {Pooling::mean, Pooling::cls, Pooling::none}) {
    models.push_back(models[0]);
    models.back().pooling = pooling;
    models.back().normalize = pooling == Pooling::mean;
  }
  models.push_back(models[0]);
  models.back().raw_scores = true;
  for (const ScorerOptions& model : models) {
    SCOPED_TRACE(model.model);
    const auto scorer = Scorer::open(model);
    EXPECT_FALSE(scorer->submit({.text = texts_[0]}).get().error);
    const Prediction p = scorer->submit({.text = texts_[1]}).get();
    expect_failed(p.error);
    EXPECT_TRUE(p.label.empty() && p.scores.empty() && p.embedding.empty() && p.entities.empty());
    if (model.pooling == Pooling::none) continue;
    const Predictions rows = scorer->score(texts_);
    ASSERT_EQ(rows.errors.size(), 1u);
    EXPECT_EQ(rows.errors[0].first, 1u);
  }
}

TEST_F(NotFinite, FailsPairs) {
  const auto scorer = Scorer::open(damaged("bert_pair"));
  const std::vector<std::string_view> second = {"w8", "w9", "w7"};
  const Predictions rows = scorer->score_pairs(texts_, second);
  ASSERT_EQ(rows.errors.size(), 2u);
  expect_failed(rows.errors[1].second);
  expect_failed(scorer->submit({.text = "w5", .pair = "w7"}).get().error);
  EXPECT_FALSE(scorer->submit({.text = "w5", .pair = "w6"}).get().error);
}

TEST_F(NotFinite, FailsTextsAndLabelsOfZeroShot) {
  ScorerOptions o = damaged("bert_pair");
  o.raw_scores = true;
  const std::filesystem::path file = std::filesystem::path(o.model) / "config.json";
  nlohmann::json config = nlohmann::json::parse(get_file(file));
  config["id2label"] = {{"0", "contradiction"}, {"1", "neutral"}, {"2", "entailment"}};
  config.erase("label2id");
  put_file(file, config.dump());
  const auto scorer = Scorer::open(o);
  const auto sound = scorer->prepare_labels({.labels = {"w10", "w30"}});
  const Predictions rows = scorer->classify(texts_, *sound);
  ASSERT_EQ(rows.errors.size(), 1u);
  EXPECT_EQ(rows.errors[0].first, 1u);
  expect_failed(rows.errors[0].second);
  EXPECT_FALSE(scorer->submit({.text = texts_[0], .zero_shot = sound}).get().error);
  expect_failed(scorer->submit({.text = texts_[1], .zero_shot = sound}).get().error);
  const auto one_label = scorer->prepare_labels({.labels = {"w10", "w7"}});
  EXPECT_EQ(scorer->classify(texts_, *one_label).errors.size(), texts_.size());
  expect_failed(scorer->submit({.text = texts_[0], .zero_shot = one_label}).get().error);
}

std::filesystem::path copied_gliner(const std::filesystem::path& to, const std::string& name) {
  std::filesystem::copy(std::filesystem::path(BRIM_SOURCE_DIR) / "tests/data/gliner" / name, to / name,
                        std::filesystem::copy_options::recursive);
  return to / name;
}

TEST_F(NotFinite, FailsEntitiesByLabel) {
  for (const std::string name : {"span_rnn", "bi_span"}) {
    SCOPED_TRACE(name);
    const auto dir = copied_gliner(temp_.path(), name);
    const auto pieces = nlohmann::json::parse(get_file(dir / "tokenizer.json"))["model"]["vocab"];
    size_t letter = 0;
    while (letter < pieces.size() && pieces[letter][0] != "q") ++letter;
    hub::edit_weight(dir, "token_rep_layer.bert_layer.model.embeddings.word_embeddings.weight", letter * 24, kNan);
    const auto scorer = Scorer::open(cpu_options(dir));
    const auto labels = scorer->prepare_entities({{"person"}, 0.0f, false});
    const std::vector<std::string_view> texts = {"Ada lives", "Ada quotes", "Ada in London"};
    const Predictions rows = scorer->classify(texts, *labels);
    ASSERT_EQ(rows.errors.size(), 1u);
    EXPECT_EQ(rows.errors[0].first, 1u);
    expect_failed(rows.errors[0].second);
    EXPECT_TRUE(rows.entities[1].empty());
    EXPECT_FALSE(rows.entities[0].empty());
    EXPECT_FALSE(scorer->submit({.text = texts[0], .zero_shot = labels}).get().error);
    expect_failed(scorer->submit({.text = texts[1], .zero_shot = labels}).get().error);
  }
}

// A label without a finite vector would match nothing, and its entities would be missing without an error.
TEST_F(NotFinite, FailsLabelsOfBiEncoders) {
  const auto dir = copied_gliner(temp_.path(), "bi_span");
  const auto words = nlohmann::json::parse(get_file(dir / "labels_tokenizer/tokenizer.json"))["model"]["vocab"];
  hub::edit_weight(dir, "token_rep_layer.labels_encoder.model.embeddings.word_embeddings.weight",
                   words["bank"].get<size_t>() * 12, kNan);
  const auto scorer = Scorer::open(cpu_options(dir));
  EXPECT_HAS(error_of(ErrorCode::bad_model,
                      [&] {
                        scorer->prepare_entities({{"person", "bank"}, 0.5f, false});
                      }),
             "the model's output is not finite");
  const auto labels = scorer->prepare_entities({{"person"}, 0.5f, false});
  EXPECT_FALSE(scorer->submit({.text = "Ada in London", .zero_shot = labels}).get().error);
}

// The maximum over all windows would hide the NaN of one window.
TEST_F(NotFinite, FailsTextsWithOneBadWindow) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += i == 60 ? "w7 " : "w5 ";
  for (const LongText how : {LongText::window_max, LongText::window_mean})
    for (const bool raw : {false, true}) {
      ScorerOptions o = damaged("bert_sequence");
      o.long_text = how;
      o.raw_scores = raw;
      const auto scorer = Scorer::open(o);
      const std::vector<std::string_view> one = {text};
      EXPECT_EQ(scorer->score(one).errors.size(), 1u);
      expect_failed(scorer->submit({.text = text}).get().error);
    }
}

// A score of 0 or 1 would hide an infinite logit.
TEST_F(NotFinite, FailsOnInfiniteLogits) {
  for (const char* model : {"bert_sequence", "bert_multilabel"})
    for (const float value : {kInfinity, -kInfinity}) {
      SCOPED_TRACE(::testing::Message() << model << " " << value);
      const ScorerOptions o = options(model, "infinite");
      model::put_golden_model(o.model, model);
      hub::edit_weight(o.model, "classifier.bias", 1, value);
      const auto scorer = Scorer::open(o);
      EXPECT_EQ(scorer->score(texts_).errors.size(), texts_.size());
      expect_failed(scorer->submit({.text = texts_[0]}).get().error);
    }
}

TEST_F(NotFinite, FailsInEveryPrecisionOfTheCpu) {
  for (const char* precision : {"fp32", "bf16", "int8"})
    for (const float value : {kNan, kInfinity}) {
      SCOPED_TRACE(::testing::Message() << precision << " " << value);
      ScorerOptions o = options("bert_sequence", "everywhere");
      o.precision = precision;
      hub::edit_weight(o.model, "bert.encoder.layer.1.intermediate.dense.weight", 100, value);
      const auto scorer = Scorer::open(o);
      const Predictions rows = scorer->score(texts_);
      ASSERT_EQ(rows.errors.size(), texts_.size());
      expect_failed(rows.errors[0].second);
      EXPECT_EQ(rows.errors[0].second.remedy().find("`precision=fp32`") == std::string::npos,
                scorer->precision() == "fp32");
    }
}

}  // namespace
}  // namespace brim::engine
