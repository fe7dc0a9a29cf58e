// SPDX-License-Identifier: Apache-2.0
#include "jobs/evaluate.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/test_files.h"
#include "engine/engine.h"
#include "model/golden_models.h"

namespace brim::jobs {
namespace {

// A word with a space is one word and shifts no tag behind it: the text is the same, the tokens are too.
TEST(Evaluate, TakesWordsWithSpaces) {
  const TempDir dir;
  model::put_golden_model(dir.path(), "bert_token");
  engine::EngineOptions options;
  options.model_dir = dir.path();
  options.device = device::read_device("cpu");
  options.precision = plan::read_precision("fp32");
  options.threads = 2;
  options.memory_limit = plan::MemoryLimit::read("1GiB");
  auto engine = engine::Engine::open(options);
  std::string apart, joined;
  for (int w = 5; w < 45; ++w) {
    apart += fmt::format("w{}\tO\n", w);
    joined += fmt::format("w{}{}", w, w == 5 ? " " : "\tO\n");
  }
  const auto predicted = [&](const std::string& bytes) {
    put_file(dir / "words.conll", bytes);
    EvalRequest request;
    request.inputs = {(dir / "words.conll").string()};
    return evaluate(*engine, request).predicted;
  };
  std::vector<int32_t> want = predicted(apart);
  ASSERT_EQ(want.size(), 40u);
  want.erase(want.begin() + 1);
  EXPECT_EQ(predicted(joined), want);
}

TEST(Evaluate, OneValueIsMeasuredAgainstNumbers) {
  const TempDir dir;
  model::put_golden_model(dir.path(), "bert_rerank");
  engine::EngineOptions options;
  options.model_dir = dir.path();
  options.device = device::read_device("cpu");
  options.precision = plan::read_precision("fp32");
  options.memory_limit = plan::MemoryLimit::read("1GiB");
  auto engine = engine::Engine::open(options);
  put_file(dir / "rows.csv", "text,other,label\nw5,w6,1\nw7 w8,w9,0\nw10,w11 w12,0.5\n");
  EvalRequest request;
  request.inputs = {(dir / "rows.csv").string()};
  request.pair_column = "other";
  const Evaluation e = evaluate(*engine, request);
  ASSERT_TRUE(e.numbers);
  EXPECT_EQ(e.rows, 3);
  EXPECT_GT(e.numbers->mse, 0);
  EXPECT_LE(std::abs(e.numbers->spearman), 1);
  put_file(dir / "rows.csv", "text,other,label\nw5,w6,good\n");
  EXPECT_THROW(evaluate(*engine, request), Error);
}

}  // namespace
}  // namespace brim::jobs
