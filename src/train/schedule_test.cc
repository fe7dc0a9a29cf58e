// SPDX-License-Identifier: Apache-2.0
// Compares learning rates with Hugging Face's schedules written out by hand, and checks the rows of each step.
#include "train/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>
#include <set>

#include "train/dataset.h"

namespace brim::train {
namespace {

TrainSet rows_of(const std::vector<int>& lengths) {
  TrainRows set;
  for (const int n : lengths) {
    set.ids.insert(set.ids.end(), static_cast<size_t>(n), 1);
    set.begin.push_back(static_cast<int64_t>(set.ids.size()));
    set.label.push_back(0);
  }
  return TrainSet(std::move(set));
}

TEST(LearningRate, LinearWithWarmup) {
  TrainSettings s;
  s.learning_rate = 1;
  s.warmup_steps = 4;
  s.lr_schedule = LrSchedule::linear;
  const double want[] = {0, 0.25, 0.5, 0.75, 1, 1 - 1 / 6.0, 1 - 2 / 6.0, 1 - 3 / 6.0, 1 - 4 / 6.0, 1 - 5 / 6.0, 0};
  for (int64_t step = 0; step <= 10; ++step) EXPECT_DOUBLE_EQ(learning_rate_at(s, 1, step, 10), want[step]) << step;
}

TEST(LearningRate, WarmupBelowOneIsARatioRoundedUp) {
  TrainSettings a, b;
  a.learning_rate = b.learning_rate = 1;
  a.warmup_steps = 0.15;
  b.warmup_ratio = 0.15;  // 2 of 10 steps
  for (int64_t step = 0; step < 10; ++step)
    EXPECT_EQ(learning_rate_at(a, 1, step, 10), learning_rate_at(b, 1, step, 10));
  EXPECT_DOUBLE_EQ(learning_rate_at(a, 1, 1, 10), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate_at(a, 1, 2, 10), 1.0);
}

TEST(LearningRate, CosineAndConstant) {
  TrainSettings s;
  s.learning_rate = 2;
  s.warmup_steps = 2;
  s.lr_schedule = LrSchedule::cosine;
  EXPECT_DOUBLE_EQ(learning_rate_at(s, 2, 1, 10), 1);
  EXPECT_DOUBLE_EQ(learning_rate_at(s, 2, 2, 10), 2);
  EXPECT_DOUBLE_EQ(learning_rate_at(s, 2, 6, 10), 1 + std::cos(M_PI * 4 / 8.0));
  EXPECT_NEAR(learning_rate_at(s, 2, 10, 10), 0, 1e-15);
  s.lr_schedule = LrSchedule::constant;
  EXPECT_DOUBLE_EQ(learning_rate_at(s, 2, 0, 10), 2);  // no warm-up, same as Hugging Face's constant schedule
  s.lr_schedule = LrSchedule::constant_with_warmup;
  EXPECT_DOUBLE_EQ(learning_rate_at(s, 2, 1, 10), 1);
  EXPECT_DOUBLE_EQ(learning_rate_at(s, 2, 9, 10), 2);
}

TEST(LearningRate, ScalesWithTheBatch) {
  TrainSettings s;
  s.learning_rate = 1e-5;
  s.train_batch_size = 64;
  s.gradient_accumulation_steps = 2;
  s.lr_reference_batch = 32;
  ASSERT_EQ(rows_of_step(s, 3), 128);
  EXPECT_DOUBLE_EQ(scaled_learning_rate(s, 128), 1e-5);
  s.lr_scaling = LrScaling::sqrt;
  EXPECT_DOUBLE_EQ(scaled_learning_rate(s, 128), 2e-5);
  s.lr_scaling = LrScaling::linear;
  EXPECT_DOUBLE_EQ(scaled_learning_rate(s, 128), 4e-5);
}

TEST(LearningRate, BatchOfTokensUsesAverageRowLength) {
  TrainSettings s;
  s.learning_rate = 1e-5;
  s.lr_scaling = LrScaling::linear;
  s.lr_reference_batch = 32;
  s.batch_tokens = 64 * 3 + 2;
  EXPECT_EQ(rows_of_step(s, 3), 64);
  EXPECT_EQ(rows_of_step(s, 1000), 1);
  EXPECT_DOUBLE_EQ(StepSchedule(s, rows_of(std::vector<int>(200, 3))).peak_learning_rate(), 2e-5);
}

TEST(StepSchedule, EveryEpochHasEveryRowOnce) {
  const TrainSet set = rows_of(std::vector<int>(23, 3));
  TrainSettings s;
  s.train_batch_size = 4;
  s.gradient_accumulation_steps = 2;
  s.num_train_epochs = 3;
  StepSchedule schedule(s, set);
  ASSERT_EQ(schedule.total_steps(), 9);  // 8 + 8 + 7 rows, three times
  std::vector<std::vector<int64_t>> orders;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<int64_t> seen;
    for (int64_t step = 3 * epoch; step < 3 * epoch + 3; ++step) {
      EXPECT_EQ(schedule.epoch_of(step), epoch);
      EXPECT_EQ(schedule.ends_epoch(step), step % 3 == 2);
      const auto rows = schedule.rows(step);
      seen.insert(seen.end(), rows.begin(), rows.end());
    }
    orders.push_back(seen);
    EXPECT_EQ(std::set<int64_t>(seen.begin(), seen.end()).size(), 23u);
  }
  EXPECT_NE(orders[0], orders[1]);
  EXPECT_DOUBLE_EQ(schedule.epochs_done(9), 3);
  EXPECT_EQ(StepSchedule(s, set).rows(4), schedule.rows(4));  // as in a resumed run
}

TEST(StepSchedule, SupportsTokenBatchesMaxStepsAndPartialEpochs) {
  const TrainSet set = rows_of({5, 9, 2, 7, 4, 8, 1, 6, 3, 10});
  TrainSettings s;
  s.batch_tokens = 12;
  s.num_train_epochs = 1;
  StepSchedule by_tokens(s, set);
  int64_t rows = 0;
  for (int64_t step = 0; step < by_tokens.total_steps(); ++step) {
    int64_t tokens = 0;
    for (const int64_t r : by_tokens.rows(step)) {
      tokens += set.length(r);
      ++rows;
    }
    EXPECT_LE(tokens, 12);
  }
  EXPECT_EQ(rows, 10);
  TrainSettings t;
  t.train_batch_size = 2;
  t.max_steps = 7;
  EXPECT_EQ(StepSchedule(t, set).total_steps(), 7);
  t.max_steps = -1;
  t.num_train_epochs = 1.5;
  EXPECT_EQ(StepSchedule(t, set).total_steps(), 8);  // 5 + ceil(2.5)
  t.train_batch_size = 1;
  t.num_train_epochs = 2.1;  // 2.1 - 2 is slightly more than 0.1
  EXPECT_EQ(StepSchedule(t, set).total_steps(), 21);
  t.num_train_epochs = 2.11;
  EXPECT_EQ(StepSchedule(t, set).total_steps(), 22);
}

TEST(MicroBatches, HoldEveryRowOnceWithinTheBudget) {
  std::mt19937 random(3);
  std::vector<int> lengths;
  for (int i = 0; i < 200; ++i) lengths.push_back(1 + static_cast<int>(random() % 40));
  const TrainSet set = rows_of(lengths);
  std::vector<int64_t> rows(200);
  std::iota(rows.begin(), rows.end(), int64_t{0});
  for (const int64_t budget : {40, 100, 1000, 100000})
    for (const int64_t sequences : {1, 7, 1000}) {
      std::set<int64_t> seen;
      for (const auto& batch : split_micro_batches(set, rows, budget, sequences)) {
        int64_t tokens = 0;
        for (const int64_t r : batch) {
          tokens += set.length(r);
          seen.insert(r);
        }
        EXPECT_LE(tokens, budget);
        EXPECT_LE(static_cast<int64_t>(batch.size()), sequences);
      }
      EXPECT_EQ(seen.size(), 200u);
    }
}

}  // namespace
}  // namespace brim::train
