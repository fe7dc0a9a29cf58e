// SPDX-License-Identifier: Apache-2.0
// Batches with texts of several adapters of one base: results are those of separate batches, and statistics, unloading
// and failures concern one adapter.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "engine/adapter_fixture.h"
#include "hub/adapter.h"
#include "hub/weights.h"

namespace brim::engine {
namespace {

class SharedBatchTest : public AdapterTest {};

TEST_F(SharedBatchTest, ResultsAreThoseOfSeparateBatches) {
  for (const char* name : {"roberta", "albert", "modernbert"})
    for (const size_t count : {8, 200})  // op by op, and chunk by chunk
      for (const char* precision : {"fp32", "bf16"}) {
        SCOPED_TRACE(std::string(name) + " " + precision + " " + std::to_string(count));
        std::vector<ScorerOptions> all = {variant(2, name), variant(4, name), variant(6, name), variant(8, name)};
        for (ScorerOptions& o : all) {
          o.precision = precision;
          o.deterministic = true;
        }
        const auto scorers = open_together(all);
        const std::vector<std::string> texts = make_texts(count, 3, 60);
        const auto got = together(scorers, texts);
        EXPECT_GT(shared_batches(scorers), 1);
        for (size_t t = 0; t < texts.size(); ++t) {
          ASSERT_FALSE(got[t].error) << got[t].error->what();
          const std::vector<float> want = logits(*scorers[t % scorers.size()], texts[t]);
          ASSERT_EQ(got[t].scores, want) << t;
        }
        EXPECT_NE(got[0].scores, logits(*scorers[1], texts[0])) << "the adapters differ";
      }
}

TEST_F(SharedBatchTest, AdaptersOfDifferentRanksShareBatches) {
  const auto golden = kAdapters.parent_path() / "lora/bert_sequence";
  ScorerOptions wide = options("bert_sequence");
  wide.raw_scores = wide.share_base = true;
  wide.adapter = golden.string();
  ScorerOptions narrow = wide;  // without the matrices of queries and values, which are stacked with those of keys
  const auto dir = temp_.path() / "narrow";
  std::filesystem::create_directories(dir);
  nlohmann::json config = nlohmann::json::parse(get_file(golden / "adapter_config.json"));
  config["target_modules"] = {"attention.output.dense", "attention.self.key", "intermediate.dense", "output.dense"};
  put_file(dir / "adapter_config.json", config.dump());
  const auto source = hub::WeightSource::open_file(golden / hub::kAdapterWeights);
  std::vector<hub::LoadedTensor> tensors;
  std::map<std::string, tensor::TensorView> kept;
  for (const std::string& name : source->names())
    if (name.find("query") == std::string::npos && name.find("value") == std::string::npos)
      kept[name] = tensors.emplace_back(source->get(name));
  hub::write_safetensors(dir / hub::kAdapterWeights, kept, {});
  narrow.adapter = dir.string();
  const auto scorers = open_together(std::vector{narrow, wide});
  EXPECT_LT(engine_of(*scorers[0]).shape().adapter_width, engine_of(*scorers[1]).shape().adapter_width);
  for (const size_t count : {9, 300}) {
    const std::vector<std::string> texts = make_texts(count, 8);
    std::vector<std::vector<float>> want;
    for (size_t t = 0; t < texts.size(); ++t) {
      want.push_back(logits(*scorers[t % 2], texts[t]));
      ASSERT_FALSE(want.back().empty()) << t;
    }
    const auto got = together(scorers, texts);
    for (size_t t = 0; t < texts.size(); ++t) {
      ASSERT_FALSE(got[t].error) << t << ": " << got[t].error->what();
      EXPECT_EQ(got[t].scores, want[t]) << t;
    }
  }
  for (const auto& scorer : scorers) EXPECT_GT(work_of(*scorer).shared_batches, 0);
}

TEST_F(SharedBatchTest, TaggersShareBatches) {
  std::vector<ScorerOptions> all = {variant(8, "bert_tags"), variant(40, "bert_tags")};
  for (ScorerOptions& o : all) o.raw_scores = false;
  const auto scorers = open_together(all);
  const std::vector<std::string> texts = make_texts(40, 6);
  const auto got = together(scorers, texts);
  EXPECT_GT(shared_batches(scorers), 1);
  for (size_t t = 0; t < texts.size(); ++t) {
    const Prediction want = scorers[t % 2]->submit({.text = texts[t]}).get();
    ASSERT_FALSE(got[t].error) << got[t].error->what();
    ASSERT_EQ(got[t].entities.size(), want.entities.size()) << t;
    for (size_t e = 0; e < want.entities.size(); ++e) {
      EXPECT_EQ(got[t].entities[e].word, want.entities[e].word);
      EXPECT_EQ(got[t].entities[e].score, want.entities[e].score);
    }
  }
}

TEST_F(SharedBatchTest, WindowsOfLongTextsKeepTheirAdapter) {
  std::vector<ScorerOptions> all = {variant(8), variant(48)};
  for (ScorerOptions& o : all) o.long_text = LongText::window_mean;
  const auto scorers = open_together(all);
  const std::vector<std::string> texts = make_texts(12, 11, 400);
  const auto got = together(scorers, texts);
  for (size_t t = 0; t < texts.size(); ++t) {
    const Prediction want = scorers[t % 2]->submit({.text = texts[t], .raw_scores = true}).get();
    ASSERT_FALSE(got[t].error) << got[t].error->what();
    EXPECT_EQ(got[t].scores, want.scores) << t;
  }
}

TEST_F(SharedBatchTest, OtherModelsHaveBatchesOfTheirOwn) {
  ScorerOptions base = options("roberta_sequence"), merged = variant(24), narrower = variant(48);
  base.raw_scores = true;
  base.share_base = true;
  merged.share_base = false;
  narrower.max_length = 40;
  const auto scorers = open_together(std::vector{base, merged, narrower, variant(8)});
  const std::vector<std::string> texts = make_texts(40, 12);
  const auto got = together(scorers, texts);
  EXPECT_EQ(shared_batches(scorers), 0);
  for (size_t t = 0; t < texts.size(); ++t) {
    ASSERT_FALSE(got[t].error) << got[t].error->what();
    EXPECT_EQ(got[t].scores, logits(*scorers[t % scorers.size()], texts[t])) << t;
  }
}

TEST_F(SharedBatchTest, EachAdapterCountsItsOwnTexts) {
  const auto scorers = open_together(std::vector{variant(8), variant(24), variant(48)});
  const std::vector<std::string> texts = make_texts(90, 4);
  std::vector<int64_t> tokens(3);
  for (size_t t = 0; t < texts.size(); ++t)
    tokens[t % 3] += static_cast<int64_t>(scorers[0]->tokenize(texts[t]).size());
  together(scorers, texts);
  for (size_t i = 0; i < 3; ++i) {
    const ModelHost::Work work = work_of(*scorers[i]);
    EXPECT_EQ(work.tokens, tokens[i]);
    EXPECT_GT(work.busy_seconds, 0);
    EXPECT_GT(work.sum_squares, 0);
    EXPECT_EQ(scorers[i]->load().tokens, 0);
  }
}

TEST_F(SharedBatchTest, CancelledAndLateTextsAreRefusedAlone) {
  const auto scorers = open_together(std::vector{variant(8), variant(24)});
  std::promise<void> waiting, release;
  std::thread blocker([&] {
    engine_of(*scorers[0]).scheduler().call([&] {
      waiting.set_value();
      release.get_future().wait();
    });
  });
  waiting.get_future().wait();
  std::stop_source stop;
  auto cancelled = scorers[1]->submit({.text = "w5 w6", .stop = stop.get_token()});
  auto late = scorers[1]->submit({.text = "w7", .deadline = std::chrono::steady_clock::now()});
  auto good = scorers[0]->submit({.text = "w8 w9", .raw_scores = true});
  auto other = scorers[1]->submit({.text = "w8 w9", .raw_scores = true});
  stop.request_stop();
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  release.set_value();
  blocker.join();
  const Prediction stopped = cancelled.get(), missed = late.get();
  ASSERT_TRUE(stopped.error && missed.error);
  EXPECT_EQ(stopped.error->code(), ErrorCode::cancelled);
  EXPECT_EQ(missed.error->code(), ErrorCode::timed_out);
  EXPECT_EQ(good.get().scores, logits(*scorers[0], "w8 w9"));
  EXPECT_EQ(other.get().scores, logits(*scorers[1], "w8 w9"));
}

// Adapters are unloaded, loaded and closed while the others score.
TEST_F(SharedBatchTest, UnloadingOneAdapterDoesNotDisturbOthers) {
  auto scorers = open_together(std::vector{variant(8), variant(24), variant(48), variant(80)});
  const std::vector<std::string> texts = make_texts(20, 9);
  std::vector<std::vector<std::vector<float>>> want(scorers.size());
  for (size_t i = 0; i < scorers.size(); ++i)
    for (const std::string& text : texts) want[i].push_back(logits(*scorers[i], text));
  std::atomic<bool> ends = false;
  std::vector<std::thread> senders;
  for (size_t i = 0; i < 3; ++i)
    senders.emplace_back([&, i] {
      for (size_t round = 0; !ends; ++round) {
        std::vector<std::future<Prediction>> answers;
        for (const std::string& text : texts) answers.push_back(scorers[i]->submit({.text = text, .raw_scores = true}));
        for (size_t t = 0; t < texts.size(); ++t) {
          const Prediction got = answers[t].get();
          ASSERT_FALSE(got.error) << got.error->what();
          ASSERT_EQ(got.scores, want[i][t]) << i << " " << round;
        }
      }
    });
  const ScorerOptions other = variant(16);
  for (int round = 0; round < 20; ++round) {
    scorers[static_cast<size_t>(round % 4)]->park();
    const auto more = open_beside(*scorers[0], other);
    EXPECT_EQ(logits(*scorers[3], texts[0]), want[3][0]);
    EXPECT_EQ(logits(*more, texts[1]).size(), want[0][1].size());
  }
  ends = true;
  for (std::thread& sender : senders) sender.join();
  EXPECT_LE(ledger(*scorers[0]).most_reserved_bytes(), int64_t{1} << 30);
}

}  // namespace
}  // namespace brim::engine
