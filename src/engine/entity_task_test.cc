// SPDX-License-Identifier: Apache-2.0
// Tests entities by label against the gliner package (tools/make_gliner_goldens.py), long texts and rejected settings.
#include "engine/entity_task.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "base/test_files.h"
#include "brim/brim.h"
#include "engine/engine.h"
#include "engine/testing.h"

namespace brim::engine {
namespace {

using nlohmann::json;

std::filesystem::path gliner_model(const std::string& name) {
  return std::filesystem::path(BRIM_SOURCE_DIR) / "tests/data/gliner" / name;
}

EngineOptions options_for_engine(const std::filesystem::path& model) {
  EngineOptions options = engine_options(cpu_options(model));
  options.model_dir = model;
  return options;
}

EntityLabels entity_labels(const json& c) {
  return {c["labels"].get<std::vector<std::string>>(), c["threshold"].get<float>(), c["nested"].get<bool>()};
}

void expect_entities(const std::vector<Entity>& got, const json& want, const std::string& text) {
  SCOPED_TRACE(text);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].start, want[i][0]);
    EXPECT_EQ(got[i].end, want[i][1]);
    EXPECT_EQ(got[i].group, want[i][2]);
    EXPECT_NEAR(got[i].score, want[i][3].get<float>(), 1e-4f);
  }
}

class EntityTaskTest : public ::testing::TestWithParam<const char*> {};

TEST_P(EntityTaskTest, EntitiesEqualThoseOfGliner) {
  const json golden = json::parse(std::ifstream(gliner_model(GetParam()) / "golden.json"));
  const std::vector<std::string> texts = golden["texts"];
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  const auto scorer = Scorer::open(cpu_options(gliner_model(GetParam())));
  EXPECT_EQ(scorer->kind(), ModelKind::tagger);
  EXPECT_TRUE(scorer->finds_entities_by_label());
  for (const json& c : golden["cases"]) {
    SCOPED_TRACE(c["labels"].dump() + c["threshold"].dump() + c["nested"].dump());
    const auto labels = scorer->prepare_entities(entity_labels(c));
    const Predictions many = scorer->classify(views, *labels);
    EXPECT_TRUE(many.errors.empty());
    for (size_t i = 0; i < texts.size(); ++i) {
      expect_entities(many.entities[i], c["entities"][i], texts[i]);
      EXPECT_EQ(many.truncated[i], texts[i].size() > 100 && i == texts.size() - 1 ? 1 : many.truncated[i]);
    }
    const Prediction one = scorer->submit({.text = texts.back(), .zero_shot = labels}).get();
    expect_entities(one.entities, c["entities"].back(), texts.back());
  }
}
INSTANTIATE_TEST_SUITE_P(Variants, EntityTaskTest,
                         ::testing::Values("span", "span_rnn", "token", "token_rnn", "bi_span", "bi_token"));

TEST(EntityTask, CountsTokensOfLabelsPerText) {
  const EntityLabels labels{.labels = {"person", "company"}};
  const auto together = Scorer::open(cpu_options(gliner_model("span")));
  const auto prepared = together->prepare_entities(labels);
  const auto alone = together->prepare_entities({.labels = {"person"}});
  EXPECT_GT(prepared->tokens_per_text(), alone->tokens_per_text());
  EXPECT_GE(alone->tokens_per_text(), 3) << "two markers and the label";
  const Prediction empty = together->submit({.text = "", .zero_shot = prepared}).get();
  EXPECT_EQ(empty.tokens, prepared->tokens_per_text() + 2) << "with [CLS] and [SEP]";
  const auto apart = Scorer::open(cpu_options(gliner_model("bi_span")));
  EXPECT_EQ(apart->prepare_entities(labels)->tokens_per_text(), 0);
}

TEST(EntityTask, BiEncoderReadsLabelsOnce) {
  const json golden = json::parse(std::ifstream(gliner_model("bi_span") / "golden.json"));
  EngineOptions options = options_for_engine(gliner_model("bi_span"));
  options.entities = entity_labels(golden["cases"][3]);
  const auto engine = Engine::open(options);
  const auto labels_read = [&] {
    return engine->labels_engine()->host().loads() * 1000 +
           engine->scheduler().work_of(engine->labels_engine()->host()).batches;
  };
  const auto before = labels_read();
  EXPECT_EQ(before, 1001);
  const std::string text = golden["texts"].back();
  for (int i = 0; i < 3; ++i) {
    const std::vector<std::string_view> texts(100, text);
    for (const auto& found : engine->entities(texts))
      expect_entities(found, golden["cases"][3]["entities"].back(), text);
  }
  EXPECT_EQ(labels_read(), before);
  const auto others = engine->prepare_entities({{"one", "two"}, 0.5f, false});
  EXPECT_EQ(labels_read(), before + 1);
}

TEST(EntityTask, BiEncoderTakesAThousandLabels) {
  const auto scorer = Scorer::open(cpu_options(gliner_model("bi_token")));
  EntityLabels labels{{}, 0.0f, true};
  for (int i = 0; i < 1000; ++i) labels.labels.push_back("label " + std::to_string(i));
  const auto prepared = scorer->prepare_entities(labels);
  const Prediction found = scorer->submit({.text = "Ada lives in London", .zero_shot = prepared}).get();
  ASSERT_FALSE(found.error);
  EXPECT_FALSE(found.truncated);
  EXPECT_FALSE(found.entities.empty());
}

TEST(EntityTask, MarkersInTextsArePlainText) {
  // A marker that is also a word of texts.
  const TempDir temp;
  const std::filesystem::path dir = temp / "model";
  std::filesystem::copy(gliner_model("span"), dir);
  json config = json::parse(get_file(dir / "gliner_config.json"));
  config["ent_token"] = "berlin";
  put_file(dir / "gliner_config.json", config.dump());
  EngineOptions options = options_for_engine(dir);
  options.entities = EntityLabels{{"a", "bank"}, 0.5f, false};
  const auto engine = Engine::open(options);
  const int32_t marker = engine->tokenizer().id("berlin");
  ASSERT_GE(marker, 0);
  for (const char* text : {"Ada in Berlin", "berlin <<ENT>> berlin <<SEP>> [ENT] [SPLIT] [SEP]"}) {
    TokenizedTexts tokens;
    ASSERT_FALSE(engine->tokenize(text, tokens));
    EXPECT_EQ(std::count(tokens.ids.begin(), tokens.ids.end(), marker), 2) << text;
    EXPECT_EQ(std::count(tokens.ids.begin(), tokens.ids.end(), engine->tokenizer().id("[SPLIT]")), 1) << text;
    for (const int32_t id : tokens.ids) EXPECT_LT(id, engine->shape().vocab);
  }
}

TEST(EntityTask, LimitsTheWindowsOfAText) {
  EngineOptions options = options_for_engine(gliner_model("span"));
  options.entities = EntityLabels{{"person"}, 0.5f, false};
  const auto engine = Engine::open(options);
  std::string text;
  for (int i = 0; i < 80'000; ++i) text += "a ";
  for (const LongText how : {LongText::window_max, LongText::truncate}) {
    TextOptions reading = engine->text_options();
    reading.long_text = how;
    TokenizedTexts tokens;
    ASSERT_FALSE(engine->tokenize("Ada in Berlin", {}, tokens, reading));
    const size_t ids = tokens.ids.size();
    const std::optional<Error> error = engine->tokenize(text, {}, tokens, reading);
    EXPECT_EQ(error.has_value(), how == LongText::window_max);
    if (error) {
      EXPECT_EQ(error->code(), ErrorCode::bad_data);
      EXPECT_EQ(tokens.ids.size(), ids);
    }
    EXPECT_EQ(tokens.texts.size(), error ? 1u : 2u);
    EXPECT_LT(tokens.words.size(), 1000u);
  }
}

TEST(EntityTask, RejectsLabelsOfAnotherScorer) {
  const auto one = Scorer::open(cpu_options(gliner_model("span"))),
             other = Scorer::open(cpu_options(gliner_model("span")));
  const auto labels = one->prepare_entities({{"person"}, 0.5f, false});
  const Prediction p = other->submit({.text = "Ada in Berlin", .zero_shot = labels}).get();
  ASSERT_TRUE(p.error);
  EXPECT_EQ(p.error->code(), ErrorCode::usage);
}

TEST(EntityTask, ScorerOpenedWithLabelsScoresManyTexts) {
  const json golden = json::parse(std::ifstream(gliner_model("span_rnn") / "golden.json"));
  const json& c = golden["cases"][6];
  ScorerOptions options = cpu_options(gliner_model("span_rnn"));
  options.entities = entity_labels(c);
  const auto scorer = Scorer::open(options);
  EXPECT_EQ(scorer->labels(), options.entities->labels);
  const std::string text = golden["texts"].back();
  const std::vector<std::string_view> many(300, text);  // more than are scored on the caller's thread
  const Predictions found = scorer->score(many);
  for (const auto& entities : found.entities) expect_entities(entities, c["entities"].back(), text);
}

TEST(EntityTask, WindowsCoverLongTexts) {
  ScorerOptions options = cpu_options(gliner_model("token"));
  options.entities = EntityLabels{{"a", "bank", "person"}, 0.25f, false};
  options.long_text = LongText::window_max;
  const auto scorer = Scorer::open(options);
  std::string text;
  for (int i = 0; i < 150; ++i) text += i % 7 == 0 ? "London " : "with ";
  const Prediction found = scorer->submit({.text = text}).get();
  ASSERT_FALSE(found.error);
  EXPECT_FALSE(found.truncated);
  ASSERT_FALSE(found.entities.empty());
  EXPECT_GT(found.entities.back().end, static_cast<int32_t>(text.size()) * 3 / 4);
  for (size_t i = 1; i < found.entities.size(); ++i) EXPECT_LE(found.entities[i - 1].end, found.entities[i].start);
  const Prediction cut = scorer->submit({.text = text, .long_text = LongText::truncate, .keep_end = true}).get();
  EXPECT_TRUE(cut.truncated);
  ASSERT_FALSE(cut.entities.empty());
  EXPECT_GT(cut.entities.front().start, static_cast<int32_t>(text.size()) / 2);
  const Prediction refused = scorer->submit({.text = text, .long_text = LongText::error}).get();
  ASSERT_TRUE(refused.error);
  EXPECT_EQ(refused.error->code(), ErrorCode::bad_data);
}

TEST(EntityTask, RejectsInvalidLabels) {
  const auto scorer = Scorer::open(cpu_options(gliner_model("span_rnn")));
  std::vector<std::string> many;
  for (int i = 0; i < 1001; ++i) many.push_back("label " + std::to_string(i));
  const std::vector<std::string> too_long(many.begin(), many.begin() + 90);
  const std::pair<EntityLabels, const char*> cases[] = {
      {{{}, 0.5f, false}, "at least one label"},
      {{{"a", "a"}, 0.5f, false}, "duplicate label \"a\""},
      {{{"a", " "}, 0.5f, false}, "label 2 is empty"},
      {{many, 0.5f, false}, "1,001 labels, at most 1,000"},
      {{too_long, 0.5f, false}, "leaving none of 192"},
      {{{"a"}, 1.5f, false}, "threshold 1.5: must be from 0 to 1"},
      {{{"a"}, std::numeric_limits<float>::quiet_NaN(), false}, "threshold nan"},
      {{{"x <<ENT>> y"}, 0.5f, false}, "contains a marker token"},
  };
  for (const auto& [labels, wanted] : cases) {
    try {
      (void)scorer->prepare_entities(labels);
      ADD_FAILURE() << wanted;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::usage);
      EXPECT_NE(std::string(error.what()).find(wanted), std::string::npos) << error.what();
    }
  }
  const std::string_view text = "Ada";
  EXPECT_THROW((void)scorer->score({&text, 1}), Error);
  const Prediction none = scorer->submit({.text = text}).get();
  ASSERT_TRUE(none.error);
  EXPECT_EQ(none.error->code(), ErrorCode::usage);
}

bool cross(const SpanScore& a, const SpanScore& b) {
  return (a.first < b.first && b.first <= a.last && a.last < b.last) ||
         (b.first < a.first && a.first <= b.last && b.last < a.last);
}

TEST(EntityTask, NestedSpansDoNotCross) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    const int32_t words = 1 + static_cast<int32_t>(random() % 12);
    std::vector<SpanScore> spans, kept;
    for (int32_t first = 0; first < words; ++first)
      for (int32_t last = first; last < words; ++last)
        if (random() % 3 != 0) spans.push_back({first, last, 0, 0.5f});
    std::shuffle(spans.begin(), spans.end(), random);
    NestedSpans nested(static_cast<size_t>(words));
    for (const SpanScore& span : spans) {
      const bool crosses = std::any_of(kept.begin(), kept.end(), [&](const auto& other) { return cross(span, other); });
      ASSERT_EQ(nested.add(span), !crosses) << round;
      if (!crosses) kept.push_back(span);
    }
  }
}

TEST(EntityTask, TagsWordsThatOverlapEntities) {
  const std::vector<text::WordSpan> words = {{0, 3}, {4, 8}, {9, 12}, {13, 14}};
  const std::vector<Entity> entities = {{"b", "", 0.9f, 0, 6}, {"a", "", 0.9f, 13, 14}};
  EXPECT_EQ(tags_of({"a", "b"}), (std::vector<std::string>{"B-a", "I-a", "B-b", "I-b"}));
  EXPECT_EQ(tags_of_words(words, entities, {"a", "b"}), (std::vector<int32_t>{2, 3, -1, 0}));
}

}  // namespace
}  // namespace brim::engine
