// SPDX-License-Identifier: Apache-2.0
#include "jobs/evaluate.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/test_files.h"
#include "engine/testing.h"
#include "model/golden_models.h"

namespace brim::jobs {
namespace {

ScorerOptions on_cpu(const TempDir& dir, const char* model) {
  model::put_golden_model(dir.path(), model);
  return engine::cpu_options(dir.path());
}

// A word that contains a space is one word and does not shift later tags: the text and its tokens are the same.
TEST(Evaluate, AcceptsWordsWithSpaces) {
  const TempDir dir;
  const auto scorer = Scorer::open(on_cpu(dir, "bert_token"));
  std::string apart, joined;
  for (int w = 5; w < 45; ++w) {
    apart += fmt::format("w{}\tO\n", w);
    joined += fmt::format("w{}{}", w, w == 5 ? " " : "\tO\n");
  }
  const auto predicted = [&](const std::string& bytes) {
    put_file(dir / "words.conll", bytes);
    EvalRequest request;
    request.inputs = {(dir / "words.conll").string()};
    return evaluate(*scorer, request).predicted;
  };
  std::vector<int32_t> want = predicted(apart);
  ASSERT_EQ(want.size(), 40u);
  want.erase(want.begin() + 1);
  EXPECT_EQ(predicted(joined), want);
}

TEST(Evaluate, CountsRejectedSentences) {
  const TempDir dir;
  ScorerOptions options = on_cpu(dir, "bert_token");
  options.max_length = 8;
  options.long_text = LongText::error;
  const auto scorer = Scorer::open(options);
  std::string words = "w5\tO\n\n";
  for (int w = 5; w < 45; ++w) words += fmt::format("w{}\tO\n", w);
  put_file(dir / "words.conll", words);
  EvalRequest request;
  request.inputs = {(dir / "words.conll").string()};
  EXPECT_HAS(error_of(ErrorCode::bad_data, [&] { evaluate(*scorer, request); }), "words.conll:3: ");
}

TEST(Evaluate, EvaluatesRegression) {
  const TempDir dir;
  const auto scorer = Scorer::open(on_cpu(dir, "bert_rerank"));
  put_file(dir / "rows.csv", "text,other,label\nw5,w6,1\nw7 w8,w9,0\nw10,w11 w12,0.5\n");
  EvalRequest request;
  request.inputs = {(dir / "rows.csv").string()};
  request.pair_column = "other";
  const Evaluation e = evaluate(*scorer, request);
  ASSERT_TRUE(e.numbers);
  EXPECT_EQ(e.rows, 3);
  // Without the pairs, or with labels shifted by one row, the value differs.
  EXPECT_LE(std::abs(e.numbers->spearman), 1);
  const auto mse = [&](const char* rows, const char* pair_column) {
    put_file(dir / "rows.csv", rows);
    request.pair_column = pair_column;
    return evaluate(*scorer, request).numbers->mse;
  };
  double sum = 0;
  const std::pair<const char*, double> alone[] = {{"w5,w6", 1}, {"w7 w8,w9", 0}, {"w10,w11 w12", 0.5}};
  for (const auto& [row, label] : alone)
    sum += mse(fmt::format("text,other,label\n{},{}\n", row, label).c_str(), "other");
  EXPECT_NEAR(e.numbers->mse, sum / 3, 1e-6);
  const char* all = "text,other,label\nw5,w6,1\nw7 w8,w9,0\nw10,w11 w12,0.5\n";
  EXPECT_GT(std::abs(mse(all, "") - e.numbers->mse), 1e-6);
  EXPECT_NEAR(mse(all, "other"), e.numbers->mse, 1e-6);
  put_file(dir / "rows.csv", "text,other,label\nw5,w6,good\n");
  EXPECT_THROW(evaluate(*scorer, request), Error);
}

}  // namespace
}  // namespace brim::jobs
