// SPDX-License-Identifier: Apache-2.0
// Adapters through the public interface: logits against PEFT's, merged or beside the weights of a base model that
// several adapters share, and the memory that this takes.
#include <gtest/gtest.h>

#include "engine/adapter_fixture.h"
#include "engine/precision.h"

namespace brim::engine {
namespace {

TEST_F(AdapterTest, LogitsMatchPeftMergedAndBesideTheBase) {
  for (const char* name : {"roberta", "bert_new_head", "deberta", "modernbert", "albert"}) {
    const nlohmann::json golden = nlohmann::json::parse(get_file(kAdapters / name / "golden.json"));
    for (const bool shares : {false, true}) {
      SCOPED_TRACE(std::string(name) + (shares ? " beside its base" : " merged"));
      const auto scorer = Scorer::open(adapted(name, shares));
      const bool beside = engine_of(*scorer).host().base() != nullptr;
      EXPECT_EQ(beside, shares && std::string(name) != "deberta") << "that one replaces biases";
      EXPECT_EQ(engine_of(*scorer).shape().adapter_width > 0, beside);
      for (size_t i = 0; i < golden["ids"].size(); ++i) {
        const auto ids = golden["ids"][i].get<std::vector<int32_t>>();
        const Prediction one = scorer->submit({.raw_scores = true, .ids = ids}).get();
        ASSERT_FALSE(one.error) << one.error->what();
        const auto want = golden["rows"][i][0].get<std::vector<float>>();
        ASSERT_EQ(one.scores.size(), want.size());
        for (size_t k = 0; k < want.size(); ++k) EXPECT_NEAR(one.scores[k], want[k], 1e-5) << i;
      }
    }
  }
}

TEST_F(AdapterTest, TaggersMatchTheMergedModel) {
  const std::vector<std::string> texts = make_texts(40, 3);
  ScorerOptions o = adapted("bert_tags", false);
  o.raw_scores = false;
  const auto merged = Scorer::open(o);
  o.share_base = true;
  const auto beside = Scorer::open(o);
  ASSERT_NE(engine_of(*beside).host().base(), nullptr);
  const Predictions want = merged->score(views(texts)), got = beside->score(views(texts));
  size_t entities = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    ASSERT_EQ(got.entities[i].size(), want.entities[i].size()) << i;
    for (size_t e = 0; e < want.entities[i].size(); ++e) {
      EXPECT_EQ(got.entities[i][e].group, want.entities[i][e].group);
      EXPECT_NEAR(got.entities[i][e].score, want.entities[i][e].score, 1e-5);
      ++entities;
    }
  }
  EXPECT_GT(entities, 0u);
}

TEST_F(AdapterTest, EveryPrecisionAndBatchSizeMatchesTheMergedModel) {
  const std::vector<std::string> texts = make_texts(200, 7, 60);  // also chunk by chunk
  for (const char* name : {"roberta", "modernbert", "albert"}) {
    for (const auto& [precision, share] : {std::pair{Precision::fp32, 1e-5}, {Precision::bf16, 0.05}}) {
      SCOPED_TRACE(std::string(name) + " " + Precision(precision).text());
      ScorerOptions o = adapted(name, false);
      o.precision = precision;
      const auto merged = Scorer::open(o);
      o.share_base = true;
      const auto beside = Scorer::open(o);
      expect_near(beside->score(views(texts)).scores, merged->score(views(texts)).scores, share);
      for (const std::string& text : make_texts(3, 9)) expect_near(logits(*beside, text), logits(*merged, text), share);
    }
  }
}

TEST_F(AdapterTest, SharesOneCopyOfTheBaseAndLeavesItUnchanged) {
  ScorerOptions base = options("roberta_sequence");
  base.raw_scores = true;
  const auto plain = Scorer::open(base);
  base.share_base = true;
  const std::vector<ScorerOptions> all = {base, variant(8), variant(24), variant(48)};
  const auto together = open_together(all);
  for (size_t i = 1; i < all.size(); ++i)
    EXPECT_EQ(engine_of(*together[i]).host().base(), engine_of(*together[0]).host().base());
  EXPECT_EQ(engine_of(*together[0]).host().base()->users(), 4);
  const std::vector<std::string> texts = make_texts(30, 5);
  for (const std::string& text : texts) EXPECT_EQ(logits(*together[0], text), logits(*plain, text));
  for (size_t i = 1; i < all.size(); ++i) {
    ScorerOptions alone = all[i];
    alone.share_base = false;
    const auto merged = Scorer::open(alone);
    for (const std::string& text : texts) expect_near(logits(*together[i], text), logits(*merged, text), 1e-5);
    for (size_t other = 0; other < i; ++other)
      EXPECT_NE(logits(*together[i], texts[0]), logits(*together[other], texts[0]));
  }
  int64_t encoder = 0;
  for (const auto& part : engine_of(*together[0]).plan().base_parts())
    if (part.tag == memory::Tag::weights) encoder += part.bytes;
  int64_t own = 0;
  for (const auto& scorer : together) {
    const int64_t bytes = engine_of(*scorer).host().weight_bytes();
    EXPECT_GT(bytes, 0);
    EXPECT_LT(bytes, encoder / 2);  // these models are tiny
    own += bytes;
  }
  EXPECT_EQ(weights(together), encoder + own) << "the base counts once";
  EXPECT_LE(weights({&plain, 1}), encoder + own);
}

TEST_F(AdapterTest, SharedBaseHasOnePrecision) {
  ScorerOptions base = options("roberta_sequence"), adapter = variant(8);
  base.raw_scores = true;
  base.precision = adapter.precision = Precision();
  record_int8_agreement(base.model, 1, 1000);
  EXPECT_EQ(Scorer::open(base)->precision(), "int8");
  base.share_base = true;
  const auto together = open_together(std::vector{base, adapter});
  EXPECT_NE(together[0]->precision(), "int8");
  EXPECT_EQ(together[0]->precision(), together[1]->precision());
  EXPECT_NE(together[0]->precision_reason().find("adapters share"), std::string::npos)
      << together[0]->precision_reason();
  ASSERT_NE(engine_of(*together[0]).host().base(), nullptr);
  EXPECT_EQ(engine_of(*together[0]).host().base(), engine_of(*together[1]).host().base());
  record_int8_agreement(adapter.adapter, 1, 1000);
  const auto later = open_beside(*together[0], adapter);
  EXPECT_EQ(engine_of(*later).host().base(), engine_of(*together[0]).host().base());
}

TEST_F(AdapterTest, PlansCountTheBaseOnce) {
  const auto together = open_together(std::vector{variant(8), variant(24), variant(48)});
  std::vector<const plan::Plan*> plans;
  for (const auto& scorer : together) plans.push_back(&engine_of(*scorer).plan());
  const int64_t base = total_bytes(plans[0]->base_parts());
  EXPECT_EQ(base, engine_of(*together[0]).host().base()->bytes());
  const auto ledger = ledger_of(plans, {"a", "b", "c"});
  const auto is_base = [](const auto& entry) { return entry.owner.starts_with(plan::kBaseWeights); };
  const auto is_own = [](const auto& entry) { return entry.owner.ends_with(": adapter"); };
  EXPECT_EQ(std::ranges::count_if(ledger, is_base), 2) << "weights and tokenizer";
  EXPECT_EQ(std::ranges::count_if(ledger, is_own), 3);
  EXPECT_EQ(&engine_of(*together[0]).tokenizer(), &engine_of(*together[1]).tokenizer());
  EXPECT_EQ(plan::planned_bytes(plans), total_bytes(ledger));
  EXPECT_LE(this->ledger(*together[0]).reserved_bytes(), plan::planned_bytes(plans));
}

TEST_F(AdapterTest, UnloadsAndLoadsAtRunTime) {
  auto first = Scorer::open(variant(8));
  const std::string text = make_texts(1, 2)[0];
  const std::vector<float> want = logits(*first, text);
  const int64_t before = ledger(*first).reserved_bytes();
  const BaseWeights* base = engine_of(*first).host().base();
  auto second = open_beside(*first, variant(24));
  EXPECT_EQ(engine_of(*second).host().base(), base);
  const int64_t both = ledger(*first).reserved_bytes(), encoder = base->bytes();
  EXPECT_EQ(both - before, engine_of(*second).host().own_bytes());
  EXPECT_LT(both - before, encoder);
  EXPECT_NE(logits(*second, text), want);
  first->park();
  EXPECT_EQ(base->users(), 1);
  EXPECT_EQ(ledger(*second).reserved_bytes(), both - engine_of(*first).host().own_bytes());
  EXPECT_EQ(logits(*first, text), want) << "loaded again";
  first->park();
  second->park();
  EXPECT_EQ(base->users(), 0);
  EXPECT_LE(ledger(*second).reserved_bytes(), before - encoder);
  EXPECT_EQ(logits(*first, text), want) << "with its base";
  second.reset();
  EXPECT_EQ(logits(*first, text), want);
}

TEST_F(AdapterTest, EvictsAdaptersAndTheirBaseForOtherModels) {
  std::vector<ScorerOptions> all = {variant(8), variant(24)};
  all.resize(12, options("bert_sequence"));  // more than fit beside a batch
  for (ScorerOptions& o : all) o.in_turn = true;
  std::vector<std::vector<float>> want;
  const std::string text = make_texts(1, 4)[0];
  int64_t together = 0, largest = 0;
  {
    const auto scorers = open_together(all);
    together = ledger(*scorers[0]).reserved_bytes();
    for (const auto& scorer : scorers) want.push_back(scorer->submit({.text = text}).get().scores);
    const ModelHost& bert = engine_of(*scorers[2]).host();
    largest = together - bert.own_bytes();  // not enough for all models
  }
  std::vector<std::shared_ptr<Scorer>> scorers;
  for (int64_t limit = largest; scorers.empty(); limit += (together - largest) / 4 + 1) {
    ASSERT_LT(limit, 2 * together);
    all[0].memory_limit = MemoryLimit::of_bytes(limit);
    try {
      scorers = open_together(all);
    } catch (const Error& e) {
      ASSERT_EQ(e.code(), ErrorCode::does_not_fit) << e.what();
    }
  }
  int evicted = 0;
  for (int round = 0; round < 3; ++round)
    for (size_t i = 0; i < all.size(); ++i) {
      const Prediction one = scorers[i]->submit({.text = text}).get();
      ASSERT_FALSE(one.error) << one.error->what();
      EXPECT_EQ(one.scores, want[i]) << i;
      for (const auto& scorer : scorers) evicted += !engine_of(*scorer).host().resident();
    }
  EXPECT_GT(evicted, 0);
  EXPECT_LE(ledger(*scorers[0]).most_reserved_bytes(), all[0].memory_limit.bytes);
}

TEST_F(AdapterTest, RefusesWhatItCannotDo) {
  ScorerOptions o = options("bert_sequence");
  o.adapter = (kAdapters / "roberta").string();
  EXPECT_HAS(error_of(ErrorCode::bad_model, [&] { Scorer::open(o); }), "the adapter belongs to another base model");
  o.adapter = o.model;
  EXPECT_HAS(error_of(ErrorCode::bad_model, [&] { Scorer::open(o); }), "no adapter_config.json");
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { Scorer::open({.model = "vader", .adapter = o.adapter}); }),
             "adapters require a model directory");
  EXPECT_HAS(error_of(ErrorCode::bad_model, [&] { Scorer::open(cpu_options(kAdapters / "roberta")); }),
             "give its base model as `model` and this directory as `adapter`");
}

}  // namespace
}  // namespace brim::engine
