// SPDX-License-Identifier: Apache-2.0
// Tests that repeated rows get exactly the results they would get on their own, with any memory limit.
#include "engine/repeated_rows.h"

#include <gtest/gtest.h>

#include <random>

#include "base/test_files.h"
#include "engine/pipeline.h"
#include "model/golden_models.h"

namespace brim::engine {
namespace {

// A stand-in for a model: two scores and a label from the text, errors for some texts.
void score_row(ScoredChunk& chunk, size_t row) {
  const std::string text = std::string(chunk.rows.texts[row]) + "|" + std::string(chunk.rows.pair(row).value_or(""));
  const size_t hash = std::hash<std::string>()(text);
  if (hash % 7 == 0) return chunk.errors.push_back({row, Error(ErrorCode::bad_data, text)});
  chunk.scores[2 * row] = static_cast<float>(hash % 1000);
  chunk.scores[2 * row + 1] = static_cast<float>(hash / 1000 % 1000);
  chunk.choices[row] = {static_cast<int32_t>(hash % 3), static_cast<float>(hash % 11)};
  chunk.truncated[row] = hash % 5 == 0;
}

// `storage` owns the texts.
ScoredChunk random_chunk(std::mt19937& random, std::deque<std::string>& storage, bool pairs) {
  ScoredChunk chunk;
  const size_t rows = random() % 50;
  for (size_t row = 0; row < rows; ++row) {
    // The split of equal bytes into two texts matters.
    const std::string& text = storage.emplace_back(random() % 3, 'a') += std::to_string(random() % 40);
    chunk.rows.texts.push_back(text);
    if (pairs) chunk.rows.pairs.push_back(storage.emplace_back(random() % 3, 'a'));
    if (random() % 20 == 0) chunk.rows.errors.push_back({row, Error(ErrorCode::bad_data, "not a row")});
  }
  chunk.errors.insert(chunk.errors.end(), chunk.rows.errors.begin(), chunk.rows.errors.end());
  chunk.scores.resize(2 * rows);
  chunk.choices.resize(rows);
  chunk.truncated.resize(rows);
  return chunk;
}

void sort_errors(ScoredChunk& chunk) {
  std::sort(chunk.errors.begin(), chunk.errors.end(), [](const auto& a, const auto& b) { return a.row < b.row; });
}

void expect_equal(const ScoredChunk& got, const ScoredChunk& want) {
  EXPECT_EQ(got.scores, want.scores);
  EXPECT_EQ(got.truncated, want.truncated);
  for (size_t row = 0; row < want.choices.size(); ++row) {
    EXPECT_EQ(got.choices[row].label, want.choices[row].label);
    EXPECT_EQ(got.choices[row].score, want.choices[row].score);
  }
  ASSERT_EQ(got.errors.size(), want.errors.size());
  for (size_t i = 0; i < want.errors.size(); ++i) {
    EXPECT_EQ(got.errors[i].row, want.errors[i].row);
    EXPECT_STREQ(got.errors[i].error.what(), want.errors[i].error.what());
  }
}

// Returns the number of repeated rows.
int64_t check_rows(int64_t most_bytes, int64_t ledger_bytes, bool pairs) {
  memory::Ledger ledger(ledger_bytes);
  std::mt19937 random(7);
  std::deque<std::string> storage;
  RepeatFinder finder(most_bytes, RepeatedResults::bytes_per_text({2}), &ledger);
  RepeatedResults results({2});
  for (int i = 0; i < 60; ++i) {
    ScoredChunk chunk = random_chunk(random, storage, pairs), want = {};
    want.rows.texts = chunk.rows.texts;
    want.rows.pairs = chunk.rows.pairs;
    want.scores = chunk.scores;
    want.choices = chunk.choices;
    want.truncated = chunk.truncated;
    want.errors = chunk.errors;
    const std::vector<RowSlot> slots = finder.find(chunk.rows);
    EXPECT_LE(ledger.reserved_bytes(), std::min(most_bytes, ledger_bytes));
    EXPECT_EQ(ledger.reserved_bytes(), finder.bytes());
    for (size_t row = 0; row < slots.size(); ++row) {
      if (chunk.rows.error(row) != nullptr) continue;
      if (!slots[row].repeats) score_row(chunk, row);
      score_row(want, row);
    }
    sort_errors(chunk);
    sort_errors(want);
    results.apply(chunk, slots);
    expect_equal(chunk, want);
  }
  return results.rows();
}

TEST(RepeatedRows, GetTheResultsOfEqualTexts) {
  const int64_t most = 64 << 20;
  const int64_t all = check_rows(most, memory::Ledger::kNoLimit, false);
  EXPECT_GT(all, 1000);
  EXPECT_GT(check_rows(most, memory::Ledger::kNoLimit, true), 800);
  for (const int64_t bytes : {4000, 8000}) {  // room for about 20 and 40 of 120 texts
    const int64_t some = check_rows(bytes, memory::Ledger::kNoLimit, false);
    EXPECT_GT(some, 100) << bytes;
    EXPECT_LT(some, all) << bytes;
  }
  EXPECT_EQ(check_rows(most, 1000, false), 0) << "nothing left under the limit";
  EXPECT_EQ(check_rows(0, memory::Ledger::kNoLimit, false), 0);
}

// In a file with many more texts than the table holds, repeats of recent rows are found.
TEST(RepeatedRows, AreFoundNearbyInLargeFiles) {
  std::mt19937 random(5);
  std::vector<std::string> texts;
  size_t repeats = 0, found = 0;
  RepeatFinder finder(200'000, RepeatedResults::bytes_per_text({2}), nullptr);  // room for about 1,000 texts
  for (int i = 0; i < 20'000; ++i) {
    const bool again = texts.size() > 100 && random() % 2 == 0;
    texts.push_back(again ? texts[texts.size() - 1 - random() % 100] : fmt::format("text {}", i));
    rows::RowChunk chunk;
    chunk.texts.push_back(texts.back());
    repeats += again;
    found += finder.find(chunk)[0].repeats;
  }
  EXPECT_GT(found, repeats * 9 / 10);
  EXPECT_LE(finder.bytes(), 200'000);
}

class RepeatedRowsOfFiles : public ::testing::TestWithParam<std::pair<LongText, const char*>> {};

// Everything the pipeline passes to the sink, as text.
std::string output_of(Engine& engine, const std::string& bytes, int64_t repeated_bytes, PipelineStats& stats) {
  rows::RowReaderOptions reading;
  reading.format = rows::RowFormat::txt;
  reading.chunk_rows = 37;
  rows::RowReader reader(io::memory_source("texts", bytes), reading);
  std::string out;
  const auto sink = [&](ScoredChunk& chunk) {
    for (size_t row = 0; row < chunk.rows.size(); ++row) {
      const Error* error = chunk.error(row);
      out += fmt::format("{} {} {} {}", chunk.rows.texts[row], chunk.choices[row].label, chunk.truncated[row],
                         error == nullptr ? "" : error->what());
      for (int64_t k = 0; k < chunk.width; ++k)
        out += fmt::format(" {:a}", chunk.scores[row * static_cast<size_t>(chunk.width) + static_cast<size_t>(k)]);
      out += "\n";
    }
  };
  PipelineOptions options;
  options.repeated_bytes = repeated_bytes;
  options.tokenizer_threads = 2;
  stats = run_pipeline(engine, reader, sink, nullptr, options);
  return out;
}

TEST_P(RepeatedRowsOfFiles, HaveTheSameOutput) {
  const TempDir temp;
  model::put_golden_model(temp.path(), "bert_sequence");
  EngineOptions options;
  options.model_dir = temp.path();
  options.device = device::read_device("cpu");
  options.precision = plan::read_precision(GetParam().second);
  options.threads = 2;
  options.memory_limit = plan::MemoryLimit::read("1GiB");
  options.long_text = GetParam().first;
  const auto engine = Engine::open(options);
  std::mt19937 random(3);
  std::vector<std::string> texts;
  for (int i = 0; i < 400; ++i) {
    std::string& text = texts.emplace_back(fmt::format("w{}", 5 + i % 90));
    for (size_t words = random() % 60; words > 0; --words) text += fmt::format(" w{}", 5 + random() % 91);
  }
  std::string file;
  for (int i = 0; i < 900; ++i) file += texts[random() % texts.size()] + "\n";
  PipelineStats apart, together, few;
  const std::string want = output_of(*engine, file, 0, apart);
  EXPECT_EQ(output_of(*engine, file, 64 << 20, together), want);
  EXPECT_EQ(output_of(*engine, file, 20000, few), want);
  EXPECT_EQ(apart.repeated_rows, 0);
  EXPECT_GT(together.repeated_rows, 500);
  EXPECT_LT(together.tokens, apart.tokens);
  EXPECT_GT(few.repeated_rows, 0);
  EXPECT_LT(few.repeated_rows, together.repeated_rows);
  EXPECT_EQ(few.repeated_bytes, 20000);
  for (const PipelineStats& stats : {together, few}) {
    EXPECT_EQ(stats.rows, apart.rows);
    EXPECT_EQ(stats.bad_rows, apart.bad_rows);
    EXPECT_EQ(stats.truncated_rows, apart.truncated_rows);
  }
}

INSTANTIATE_TEST_SUITE_P(LongTexts, RepeatedRowsOfFiles,
                         ::testing::Values(std::pair(LongText::truncate, "fp32"),
                                           std::pair(LongText::window_mean, "fp32"), std::pair(LongText::error, "fp32"),
                                           std::pair(LongText::truncate, "bf16"),
                                           std::pair(LongText::truncate, "int8")));

}  // namespace
}  // namespace brim::engine
