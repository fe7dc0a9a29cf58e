// SPDX-License-Identifier: Apache-2.0
#include "train/disk_space.h"

#include <gtest/gtest.h>

#include "train/tiny_job.h"

namespace brim::train {
namespace {

namespace fs = std::filesystem;

TEST(DiskNeed, CountsTheModelAndItsCheckpoints) {
  DiskNeed need{.model_bytes = 10, .checkpoint_bytes = 30};
  EXPECT_EQ(need.bytes(), 10);
  need.saves = 1, need.keep = 2;
  EXPECT_EQ(need.bytes(), 30 + 10);
  need.saves = 5;
  EXPECT_EQ(need.bytes(), 3 * 30) << "the third checkpoint is written before the first is removed";
  need.rewrites_model = true;
  EXPECT_EQ(need.bytes(), 3 * 30 + 10);
  need.model_bytes = 40;
  EXPECT_EQ(need.bytes(), 2 * 30 + 2 * 40) << "a better model is written before the previous one is removed";
  need.keep = 0;
  EXPECT_EQ(need.bytes(), 5 * 30 + 2 * 40);
}

TEST(DiskNeed, SubtractsFilesOfAResumedRun) {
  DiskNeed need{.model_bytes = 10, .checkpoint_bytes = 30, .saves = 5, .keep = 2, .kept = 2};
  EXPECT_EQ(need.bytes(), 30);
  need.rewrites_model = need.has_model = true;
  EXPECT_EQ(need.bytes(), 30);
  need.saves = 0;
  EXPECT_EQ(need.bytes(), 10);
  need.kept = 9;
  EXPECT_EQ(need.bytes(), 10);
}

// No file system has space for 100 million checkpoints.
TEST(DiskSpace, IsCheckedBeforeTheFirstStep) {
  TinyJob t("bert_sequence", 480);
  t.settings.train_batch_size = 1;
  t.settings.max_steps = 100'000'000;
  t.settings.save_strategy = Strategy::steps;
  t.settings.save_steps = 1;
  t.settings.save_total_limit = 0;
  const std::string message = error_of(ErrorCode::cannot_write, [&] { t.run(); });
  EXPECT_HAS(message, "not enough disk space: the run needs ");
  EXPECT_HAS(message, " bytes) are available");
  EXPECT_HAS(message, "`save_total_limit=1`");
  EXPECT_FALSE(fs::exists(t.out() / "checkpoint-1"));
  EXPECT_FALSE(fs::exists(t.out() / "model.safetensors"));
}

// Compares the estimate with the bytes a run leaves on disk, so that nothing of a model's size is missing.
TEST(DiskSpace, EstimateCoversTheBytesWritten) {
  TinyJob t;
  t.settings.save_strategy = Strategy::steps;
  t.settings.save_steps = 2;
  t.settings.save_total_limit = 0;
  t.run();
  int64_t left = 0, model = 0;
  for (const auto& file : fs::recursive_directory_iterator(t.out())) {
    if (!file.is_regular_file()) continue;
    left += static_cast<int64_t>(file.file_size());
    if (file.path() == t.out() / "model.safetensors") model = static_cast<int64_t>(file.file_size());
  }
  TrainJob job = open_train_job(t.settings, {[](const std::string&) {}});
  const StepSchedule schedule(job.settings, job.train_set);
  const model::TrainState state(*job.device, job.shape, job.precision, job.plan.optimizer);
  fs::remove_all(t.out());
  const DiskNeed need = disk_need(job, schedule, state, 0, true);
  EXPECT_EQ(need.saves, 5);
  EXPECT_LE(std::abs(need.bytes() - model - left), model) << need.bytes() << " " << left << " " << model;
}

// A directory at the path of the weights file makes the last write fail.
TEST(DiskSpace, SavesAnUnwritableModelInTheTemporaryDirectory) {
  TinyJob t;
  t.settings.load_best_model_at_end = false;
  t.run();
  TrainSettings s = t.to("blocked");
  s.overwrite_output_dir = true;
  put_file(t.dir / "blocked/model.safetensors/file", "x");
  fs::create_directories(t.dir / "temporary");
  const char* before = ::getenv("TMPDIR");
  const std::string old = before == nullptr ? "" : before;
  ::setenv("TMPDIR", (t.dir / "temporary").c_str(), 1);
  const std::string message = error_of(ErrorCode::cannot_write, [&] { train(s, {}); });
  before == nullptr ? ::unsetenv("TMPDIR") : ::setenv("TMPDIR", old.c_str(), 1);
  const fs::path rescued = fs::directory_iterator(t.dir / "temporary")->path();
  EXPECT_HAS(message, "blocked/model.safetensors");
  EXPECT_HAS(message, "the trained model was saved in " + rescued.string());
  EXPECT_EQ(get_file(rescued / "model.safetensors"), t.weights());
  EXPECT_TRUE(fs::exists(rescued / "config.json"));
  EXPECT_TRUE(fs::exists(rescued / "vocab.txt"));
}

}  // namespace
}  // namespace brim::train
