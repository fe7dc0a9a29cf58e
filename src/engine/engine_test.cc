// SPDX-License-Identifier: Apache-2.0
// Tests the engine and its pipeline with a tiny model on the CPU: row order, batch invariance, truncation and windows,
// errors of single rows, and errors of any stage. GPU tests are in engine_cuda_test.cc.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "base/error.h"
#include "base/test_files.h"
#include "device/testing.h"
#include "engine/pipeline.h"
#include "engine/precision.h"
#include "engine/run_stats.h"
#include "io/compress.h"
#include "memory/ledger.h"
#include "model/golden_models.h"

namespace brim::engine {

using rows::RowReader;

namespace {

namespace fs = std::filesystem;

class EngineTest : public ::testing::Test {
 protected:
  void SetUp() override { model::put_golden_model(dir_, "bert_sequence"); }

  std::unique_ptr<Engine> open(LongText long_text = LongText::truncate, const std::string& limit = "1GiB",
                               int threads = 2) {
    EngineOptions options;
    options.model_dir = dir_;
    options.device = device::read_device("cpu");
    options.precision = plan::read_precision("fp32");
    options.threads = threads;
    options.memory_limit = plan::MemoryLimit::read(limit);
    options.long_text = long_text;
    return Engine::open(options);
  }

  static std::string text(std::mt19937& random, size_t words) {
    std::string out;
    for (size_t i = 0; i < words; ++i) out += fmt::format("{}w{}", i > 0 ? " " : "", 5 + random() % 91);
    return out;
  }

  static RowReader lines(std::string bytes, size_t chunk_rows = 8192) {
    rows::RowReaderOptions options;
    options.format = rows::RowFormat::txt;
    options.chunk_rows = chunk_rows;
    return RowReader(io::memory_source("texts", std::move(bytes)), options);
  }

  const TempDir temp_;
  const fs::path dir_ = temp_.path();
};

TEST_F(EngineTest, ScoresDoNotDependOnTheBatch) {
  auto engine = open();
  std::mt19937 random(1);
  std::vector<std::string> texts;
  for (int i = 0; i < 300; ++i) texts.push_back(text(random, i % 64 == 5 ? 40 : 1 + random() % 12));
  std::vector<std::string_view> views(texts.begin(), texts.end());
  const auto together = engine->score(views);
  for (size_t i = 0; i < texts.size(); i += 37) {
    const auto alone = engine->score(std::span(&views[i], 1));
    for (size_t k = 0; k < alone[0].size(); ++k) EXPECT_NEAR(alone[0][k], together[i][k], 2e-6) << i;
  }
}

// Guarantee on a CPU: bitwise equal scores in every precision, for any number of GEMM rows.
TEST_F(EngineTest, CpuScoresAreBitwiseBatchInvariant) {
  std::mt19937 random(1);
  std::vector<std::string> texts;
  for (int i = 0; i < 300; ++i) texts.push_back(text(random, i % 64 == 5 ? 40 : 1 + random() % 12));
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  for (const char* precision : {"fp32", "bf16", "int8"}) {
    EngineOptions options;
    options.model_dir = dir_;
    options.device = device::read_device("cpu");
    options.precision = plan::read_precision(precision);
    options.threads = 2;
    const auto engine = Engine::open(options);
    const auto together = engine->score(views);
    for (size_t i = 0; i < texts.size(); i += 7) {
      EXPECT_EQ(engine->score(std::span(&views[i], 1))[0], together[i]) << precision << " " << i;
      const size_t few = std::min<size_t>(3, texts.size() - i);
      EXPECT_EQ(engine->score(std::span(&views[i], few))[0], together[i]) << precision << " " << i;
    }
  }
}

TEST_F(EngineTest, BulkBatchesRespectTheTimeLimit) {
  EngineOptions options;
  options.model_dir = dir_;
  options.device = device::read_device("cpu");
  options.precision = plan::read_precision("fp32");
  options.threads = 2;
  const auto whole = Engine::open(options);
  options.bulk_seconds = 2000 / whole->plan().tokens_per_second;
  const auto brief = Engine::open(options);
  EXPECT_EQ(whole->pack_limits().tokens, whole->plan().token_budget);
  EXPECT_NEAR(static_cast<double>(brief->pack_limits().tokens), 2000, 1);
  options.bulk_seconds = 1e-9;
  EXPECT_EQ(Engine::open(options)->pack_limits().tokens, 1024) << "smaller ones are slow";
  std::mt19937 random(1);
  std::vector<std::string> texts;
  for (int i = 0; i < 3000; ++i) texts.push_back(text(random, 1 + random() % 12));
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  EXPECT_EQ(brief->score(views), whole->score(views));
}

TEST_F(EngineTest, BulkWorkGetsATenthDespiteLargerBatches) {
  EngineOptions options;
  options.model_dir = dir_;
  options.device = device::read_device("cpu");
  options.precision = plan::read_precision("fp32");
  options.threads = 1;
  options.batch_tokens = 1024;
  const auto engine = Engine::open(options);
  // All work is queued before the device thread looks for any.
  std::atomic<bool> held{false}, go{false};
  std::thread holding([&] {
    engine->scheduler().call([&] {
      held = true;
      wait_until([&] { return go.load(); });
    });
  });
  wait_until([&] { return held.load(); });
  int64_t bulk_tokens = 0, beside = 0;  // used by the device thread
  const auto bulk = engine->bulk([&](const batch::PackedBatch& batch, const float*) { bulk_tokens += batch.tokens(); });
  const std::vector<int32_t> ids(16, 5);
  for (int i = 0; i < 400; ++i) {
    batch::PackedBatch batch;
    batch.add({ids.data(), static_cast<int32_t>(ids.size()), 0}, engine->shape().position_offset);
    batch.finish();
    bulk->submit(batch);
  }
  std::mt19937 random(2);
  PendingTexts texts;
  int64_t tokens = 0;
  while (tokens < 20 * 1024) {
    auto pending = std::make_unique<PendingText>();
    EXPECT_FALSE(engine->tokenize(text(random, 30), pending->tokens));
    tokens += static_cast<int64_t>(pending->tokens.ids.size());
    texts.push_back(std::move(pending));
  }
  size_t left = texts.size();
  std::atomic<bool> answered{false};
  const auto interactive = engine->interactive(
      [&](PendingTexts& done) {
        left -= done.size();
        if (left > 0) return;
        beside = bulk_tokens;
        answered = true;
      },
      1e9, 1 << 30);
  interactive->submit(std::move(texts));
  go = true;
  holding.join();
  wait_until([&] { return answered.load(); });
  EXPECT_GE(beside * 9, tokens - 2 * 1024);
  EXPECT_LE(beside * 9, tokens + 5 * 9 * 16) << "and no more";
  bulk->finish();
}

TEST_F(EngineTest, PipelineKeepsOrderAndEveryRow) {
  auto engine = open();
  std::mt19937 random(2);
  std::string bytes;
  std::vector<std::string> texts;
  for (int i = 0; i < 1200; ++i) {
    texts.push_back(text(random, 1 + random() % 20));
    bytes += texts.back() + "\n";
  }
  std::vector<std::string_view> views(texts.begin(), texts.end());
  const auto expected = engine->score(views);
  for (const size_t chunk_rows : {7, 100, 8192}) {
    RowReader reader = lines(bytes, chunk_rows);
    size_t next = 0;
    const PipelineStats stats = run_pipeline(*engine, reader,
                                             [&](ScoredChunk& chunk) {
                                               for (size_t r = 0; r < chunk.rows.size(); ++r, ++next) {
                                                 ASSERT_EQ(chunk.rows.texts[r], texts[next]);
                                                 for (size_t k = 0; k < 3; ++k)
                                                   ASSERT_NEAR(chunk.scores[r * 3 + k], expected[next][k], 2e-6);
                                               }
                                             },
                                             nullptr, {});
    EXPECT_EQ(next, texts.size());
    EXPECT_EQ(stats.rows, static_cast<int64_t>(texts.size()));
    EXPECT_GT(stats.tokens, 0);
  }
}

TEST_F(EngineTest, LongTextsAreTruncatedWindowedOrRejected) {
  std::mt19937 random(3);
  const std::string words = text(random, 100);  // 102 tokens; the model's limit is 44
  const std::string_view view = words;
  TokenizedTexts tokens;
  auto cut = open(LongText::truncate);
  EXPECT_FALSE(cut->tokenize(words, tokens).has_value());
  EXPECT_TRUE(tokens.texts[0].truncated);
  ASSERT_EQ(tokens.windows[0].length, 44);
  EXPECT_EQ(tokens.ids[tokens.windows[0].begin + 43], 3);  // [SEP] is kept
  tokens.clear();
  auto windows = open(LongText::window_mean);
  EXPECT_FALSE(windows->tokenize(words, tokens).has_value());
  EXPECT_EQ(tokens.windows.size(), 3u);  // 100 words in windows of 42
  EXPECT_EQ(tokens.windows[2].first_content, 58);
  const auto mean = windows->score(std::span(&view, 1))[0];
  EXPECT_NEAR(mean[0] + mean[1] + mean[2], 1, 1e-5);
  tokens.clear();
  auto strict = open(LongText::error);
  const auto error = strict->tokenize(words, tokens);
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->code(), ErrorCode::bad_data);
  EXPECT_TRUE(tokens.ids.empty());
}

TEST_F(EngineTest, ClassifierWindowsHaveTheRequestedOverlap) {
  auto engine = open(LongText::window_mean);
  std::mt19937 random(4);
  const std::string words = text(random, 100);
  const std::vector<int32_t> ids(100, 7);
  const auto windows = [](int64_t capacity, int64_t step) {
    return static_cast<size_t>((100 - capacity + step - 1) / step + 1);
  };
  for (const int32_t overlap : {-1, 0, 12, 21, 1000}) {  // clamped to half a window
    const TextOptions how{LongText::window_mean, false, overlap};
    const int64_t shared = overlap < 0 ? 0 : overlap;
    TokenizedTexts tokens;
    ASSERT_FALSE(engine->tokenize(words, tokens, how));
    EXPECT_EQ(tokens.windows.size(), windows(42, 42 - std::min<int64_t>(shared, 21))) << overlap;
    EXPECT_EQ(tokens.windows[1].first_content, std::min<int64_t>(42 - std::min<int64_t>(shared, 21), 58));
    EXPECT_EQ(tokens.windows.back().first_content, 58);
    tokens.clear();
    ASSERT_FALSE(engine->take_ids(ids, tokens, how));
    EXPECT_EQ(tokens.windows.size(), windows(44, 44 - std::min<int64_t>(shared, 22))) << overlap;
    EXPECT_EQ(tokens.windows.back().first_content, 56);
  }
}

TEST_F(EngineTest, ScoresEmptyTextsAndInvalidBytes) {
  auto engine = open();
  const std::vector<std::string_view> texts = {"", " ", "\xFF\xFE", std::string_view("a\0b", 3), "ab", "w5"};
  const auto scores = engine->score(texts);
  ASSERT_EQ(scores.size(), texts.size());
  for (size_t i = 0; i < scores.size(); ++i) {
    ASSERT_EQ(scores[i].size(), 3u) << i;
    float sum = 0;
    for (const float s : scores[i]) {
      EXPECT_GT(s, 0) << i;
      sum += s;
    }
    EXPECT_NEAR(sum, 1, 1e-6) << i;
  }
  // BERT's normalizer drops NUL and the replacement characters of invalid bytes.
  EXPECT_EQ(scores[1], scores[0]);
  EXPECT_EQ(scores[2], scores[0]);
  EXPECT_EQ(scores[3], scores[4]);
  EXPECT_NE(scores[5], scores[0]);
}

// Logits of a numpy forward pass with positions = cumsum(id != pad) * (id != pad) + pad, which matches golden.json to
// 1e-6. [UNK] has id 1 and [CLS] id 2 in this vocabulary.
TEST_F(EngineTest, PaddingTokensWithinTextsHaveNoPosition) {
  struct Case {
    const char* model;
    int padding;
    const char* text;
    std::vector<double> logits;
  };
  const std::vector<Case> cases = {
      {"roberta_sequence", 1, "w5 [UNK] w6", {1.190714, -0.01444, -0.461854}},
      {"roberta_sequence", 1, "[UNK] [UNK] w7 [UNK]", {-0.053562, 0.735562, 0.446615}},
      {"roberta_sequence", 2, "w5 [UNK] w6", {0.494265, 0.963427, -0.717022}},
      {"xlmroberta_sequence", 1, "w5 [UNK] w6", {1.1457, 0.088254, 2.019245}},
      {"xlmroberta_sequence", 2, "[UNK] [UNK] w7 [UNK]", {0.880146, 0.710117, 2.588147}},
  };
  for (const Case& c : cases) {
    model::put_golden_model(dir_, c.model);
    auto config = nlohmann::json::parse(get_file(dir_ / "config.json"));
    config["pad_token_id"] = c.padding;
    put_file(dir_ / "config.json", config.dump());
    const std::string_view text = c.text;
    const auto scores = open()->score(std::span(&text, 1));
    double sum = 0;
    for (const double logit : c.logits) sum += std::exp(logit);
    ASSERT_EQ(scores[0].size(), c.logits.size());
    for (size_t k = 0; k < c.logits.size(); ++k)
      EXPECT_NEAR(scores[0][k], std::exp(c.logits[k]) / sum, 2e-6) << c.model << " " << c.padding << " " << c.text;
  }
}

TEST_F(EngineTest, SinkErrorStopsEveryStage) {
  auto engine = open();
  std::string bytes;
  for (int i = 0; i < 20000; ++i) bytes += "w5 w6\n";
  RowReader reader = lines(std::move(bytes), 10);
  EXPECT_THROW(
      run_pipeline(*engine, reader, [&](ScoredChunk&) { fail(ErrorCode::cannot_write, "disk full"); }, nullptr, {}),
      Error);
}

// Number of rows returned by a run that is stopped with its first row.
int64_t rows_when_stopped(Engine& engine, RowReader& reader) {
  std::atomic<bool> stop{false};
  PipelineOptions options;
  options.stop = &stop;
  int64_t rows = 0;
  run_pipeline(
      engine, reader,
      [&](ScoredChunk& c) {
        rows += static_cast<int64_t>(c.rows.size());
        stop = true;
      },
      nullptr, options);
  return rows;
}

TEST_F(EngineTest, StopFinishesRowsAlreadyRead) {
  auto engine = open();
  std::string bytes;
  for (int i = 0; i < 20000; ++i) bytes += "w5 w6\n";
  RowReader reader = lines(std::move(bytes), 10);
  const int64_t rows = rows_when_stopped(*engine, reader);
  EXPECT_GT(rows, 0);
  EXPECT_LT(rows, 20000);
}

// Up to fourteen chunks are in flight; those not started by the device when the signal arrives are dropped.
TEST_F(EngineTest, StopDropsRowsNotStarted) {
  auto engine = open();
  std::mt19937 random(7);
  std::string bytes;
  constexpr int64_t kChunk = 400;
  for (int i = 0; i < 16 * kChunk; ++i) bytes += text(random, 40) + "\n";
  RowReader reader = lines(std::move(bytes), kChunk);
  const int64_t rows = rows_when_stopped(*engine, reader);
  EXPECT_GT(rows, 0);
  EXPECT_LT(rows, 8 * kChunk);
}

TEST_F(EngineTest, ProgressCountsDeliveredRows) {
  auto engine = open();
  std::string bytes;
  for (int i = 0; i < 20000; ++i) bytes += "w5 w6\n";
  const auto whole = static_cast<int64_t>(bytes.size());
  RowReader reader = lines(std::move(bytes), 1000);
  const PipelineStats stats = run_pipeline(
      *engine, reader, [](ScoredChunk&) {}, [&](const PipelineStats& now) { EXPECT_EQ(now.file_bytes, 6 * now.rows); },
      {});
  EXPECT_EQ(stats.file_bytes, whole);
}

TEST_F(EngineTest, VaderUsesTheSamePipeline) {
  RowReader reader = lines("I love this\nI hate this\nthe table\n");
  std::vector<float> compound;
  std::vector<std::string> labels;
  const auto rules = Scorer::open({.model = "vader"});
  score_rows(*rules, reader,
             [&](ScoredChunk& c) {
               for (size_t r = 0; r < c.rows.size(); ++r) {
                 compound.push_back(c.scores[r * 4 + 3]);
                 labels.push_back(rules->labels()[static_cast<size_t>(c.choices[r].label)]);
               }
             },
             nullptr, {});
  EXPECT_EQ(labels, std::vector<std::string>({"positive", "negative", "neutral"}));
  ASSERT_EQ(compound.size(), 3u);
  EXPECT_FLOAT_EQ(compound[0], 0.6369f);
  EXPECT_FLOAT_EQ(compound[1], -0.5719f);
  EXPECT_EQ(compound[2], 0);
}

TEST_F(EngineTest, RejectsAVocabularyLargerThanTheTable) {
  std::ofstream(dir_ / "vocab.txt", std::ios::app) << "extra\n";
  try {
    open();
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::bad_model);
    EXPECT_NE(std::string(e.what()).find("96"), std::string::npos);
  }
}

TEST_F(EngineTest, TooSmallLimitIsExitCodeFive) {
  try {
    open(LongText::truncate, "1KiB");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::does_not_fit);
  }
}

TEST_F(EngineTest, EncoderWithoutHeadSuggestsAFix) {
  model::put_golden_model(dir_, "bert_encoder");
  try {
    open();
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::bad_model);
    EXPECT_NE(std::string(e.what()).find("brim train"), std::string::npos);
  }
}

TEST_F(EngineTest, TokenModelsReturnEntitiesWithOffsets) {
  model::put_golden_model(dir_, "bert_token");
  auto engine = open();
  RowReader reader = lines("w5 w6 w7 w8\n\n");
  int64_t rows = 0;
  std::vector<std::vector<std::string>> words;
  run_pipeline(
      *engine, reader,
      [&](ScoredChunk& c) {
        for (const auto& entities : c.entities)
          for (const Entity& e : entities) {
            EXPECT_LT(e.start, e.end);
            EXPECT_EQ(
                e.word,
                std::string("w5 w6 w7 w8").substr(static_cast<size_t>(e.start), static_cast<size_t>(e.end - e.start)));
          }
        for (const auto& entities : c.entities) {
          words.emplace_back();
          for (const Entity& e : entities) words.back().push_back(e.word);
        }
        rows += static_cast<int64_t>(c.rows.size());
      },
      nullptr, {});
  EXPECT_EQ(rows, 2);
  // The public interface gives the same result.
  const std::vector<std::string_view> texts = {"w5 w6 w7 w8", ""};
  const auto direct = engine->entities(texts);
  ASSERT_EQ(direct.size(), words.size());
  for (size_t r = 0; r < direct.size(); ++r) {
    ASSERT_EQ(direct[r].size(), words[r].size());
    for (size_t i = 0; i < direct[r].size(); ++i) EXPECT_EQ(direct[r][i].word, words[r][i]);
  }
}

TEST_F(EngineTest, SharedTokensComeFromTheWindowWhereTheyAreFartherFromAnEdge) {
  model::put_golden_model(dir_, "bert_token");
  auto engine = open(LongText::window_mean);
  std::mt19937 random(4);
  const std::string words = text(random, 100);           // in windows of 42
  for (const int32_t overlap : {-1, 0, 12, 21, 1000}) {  // clamped to half a window
    TokenizedTexts tokens;
    ASSERT_FALSE(engine->tokenize(words, tokens, {LongText::window_mean, false, overlap}));
    const int64_t step = overlap < 0 ? 32 : overlap == 0 ? 42 : overlap == 12 ? 30 : 21;
    ASSERT_EQ(tokens.windows.size(), static_cast<size_t>((100 - 42 + step - 1) / step + 1)) << overlap;
    const text::Encoding encoding = engine->tokenizer().encode(words);
    const auto K = static_cast<size_t>(engine->width());
    std::vector<float> windows(tokens.ids.size() * K), scores;
    for (size_t w = 0; w < tokens.windows.size(); ++w)
      for (int32_t i = 0; i < tokens.windows[w].length; ++i)
        windows[(tokens.windows[w].begin + static_cast<size_t>(i)) * K] = static_cast<float>(w + 1);
    engine->token_scores(tokens, 0, encoding, windows, scores);
    for (int32_t i = 0; i < 100; ++i) {
      const auto& window = tokens.windows[static_cast<size_t>(scores[static_cast<size_t>(i + 1) * K]) - 1];
      const auto margin = [&](const TokenizedText::Window& one) {  // the ends of the text are not edges
        const int32_t first = one.first_content, end = first + 42;
        const int32_t before = first == 0 ? 100 : i - first, behind = end == 100 ? 100 : end - 1 - i;
        return std::min(before, behind);
      };
      for (const auto& other : tokens.windows) EXPECT_GE(margin(window), margin(other)) << overlap << " token " << i;
    }
  }
}

TEST(HeldBytes, CountsOnlyTheRunsOwnGpu) {
  ::setenv("BRIM_NVML_LIBRARY", BRIM_NVML_STAND_IN, 1);
  ::setenv("BRIM_NVML_SCENARIO", "name=A,pci=17,pid=1|name=B,pci=65", 1);  // this process only uses B
  EXPECT_EQ(held_bytes(device::StandInCard("0000:65:00.0")), int64_t{300} << 20);
  EXPECT_EQ(held_bytes(device::StandInCard("0000:17:00.0")), std::nullopt);
  EXPECT_EQ(held_bytes(device::StandInCard()), std::nullopt);
  ::unsetenv("BRIM_NVML_LIBRARY"), ::unsetenv("BRIM_NVML_SCENARIO");
  EXPECT_GT(monitor::peak_resident_bytes(), 0);
}

TEST(PrecisionChoice, Fp8ReportsMatmulsThatUseBf16) {
  const auto choice = [](int64_t hidden, int64_t ffn) {
    hub::HfConfig config;
    config.hidden_size = hidden;
    config.intermediate_size = ffn;
    return choose_precision({ops::Precision::fp8}, plan::card_profile("h200"), config, {});
  };
  EXPECT_EQ(choice(320, 1280).precision, ops::Precision::fp8);
  EXPECT_EQ(choice(320, 1280).reason, "requested");
  EXPECT_EQ(choice(320, 1288).precision, ops::Precision::fp8);
  EXPECT_NE(choice(320, 1288).reason.find("feed-forward size 1288 uses bf16"), std::string::npos);
  EXPECT_EQ(choice(312, 1200).precision, ops::Precision::bf16);
  EXPECT_NE(choice(312, 1200).reason.find("hidden size 312 uses bf16"), std::string::npos);
}

TEST(PrecisionChoice, Int8OnGpusReportsProductsInFp16) {
  const auto choice = [](const plan::PrecisionRequest& request, int64_t hidden, int64_t ffn) {
    hub::HfConfig config;
    config.hidden_size = hidden;
    config.intermediate_size = ffn;
    return choose_precision(request, plan::card_profile("rtx3060"), config, {});
  };
  const plan::PrecisionRequest int8{ops::Precision::int8};
  EXPECT_EQ(choice(int8, 384, 1536).precision, ops::Precision::int8);
  EXPECT_EQ(choice(int8, 384, 1000).precision, ops::Precision::int8);
  EXPECT_NE(choice(int8, 384, 1000).reason.find("feed-forward size 1000 uses fp16"), std::string::npos);
  EXPECT_EQ(choice(int8, 200, 1000).precision, ops::Precision::fp16);
  EXPECT_NE(choice(int8, 200, 1000).reason.find("hidden size 200 uses fp16"), std::string::npos);
  EXPECT_NE(choice({}, 384, 1536).precision, ops::Precision::int8);
}

// Three models share a limit that fits one or two: models are loaded on demand and the longest idle one is unloaded. A
// model with missing files fails alone.
TEST_F(EngineTest, ModelsAlternateUnderALimitTooSmallForAll) {
  std::vector<EngineOptions> options(3);
  for (size_t i = 0; i < options.size(); ++i) {
    options[i].model_dir = temp_.path() / fmt::format("model{}", i);
    model::put_golden_model(options[i].model_dir, "bert_sequence");
    options[i].device = device::read_device("cpu");
    options[i].precision = plan::read_precision("fp32");
    options[i].threads = 1;
  }
  std::mt19937 random(7);
  const std::vector<std::string_view> texts{"w5 w6 w7", "w8", "w9 w10 w11 w12"};
  const auto alone = Engine::open(options[0]);
  const auto want = alone->score(texts);
  const int64_t own = total_bytes(alone->plan().own_parts());
  std::vector<std::unique_ptr<Engine>> engines;
  int64_t limit = alone->plan().device.context_bytes + own;
  for (; engines.empty() && limit < int64_t{1} << 30; limit += own / 4) {
    options[0].memory_limit = plan::MemoryLimit::read(fmt::format("{}B", limit));
    try {
      engines = Engine::open_together(options, plan::Residency::in_turn);
    } catch (const Error& e) {
      ASSERT_EQ(e.code(), ErrorCode::does_not_fit) << e.what();
    }
  }
  ASSERT_EQ(engines.size(), 3u);
  EXPECT_FALSE(engines[2]->host().resident());
  for (int turn = 0; turn < 200; ++turn) EXPECT_EQ(engines[random() % 3]->score(texts), want) << turn;
  const memory::Ledger& ledger = memory::Ledger::of(engines[0]->device());
  EXPECT_LE(ledger.most_reserved_bytes(), ledger.limit_bytes());
  EXPECT_GT(engines[0]->host().loads() + engines[1]->host().loads() + engines[2]->host().loads(), 60);

  (void)engines[0]->score(texts);
  (void)engines[1]->score(texts);  // unloads the third
  EXPECT_FALSE(engines[2]->host().resident());
  fs::remove(options[2].model_dir / "model.safetensors");
  EXPECT_THROW((void)engines[2]->score(texts), Error);
  EXPECT_EQ(engines[0]->score(texts), want);
  EXPECT_EQ(engines[1]->score(texts), want);
}

}  // namespace
}  // namespace brim::engine
