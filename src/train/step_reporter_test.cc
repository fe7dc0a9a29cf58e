// SPDX-License-Identifier: Apache-2.0
// Figures of a run: its speed, its losses, and one GPU sample per line, from the driver if available, else from the
// run's own count.
#include "train/step_reporter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "device/testing.h"
#include "train/tiny_job.h"

namespace brim::train {
namespace {

constexpr int64_t kCounted = 7 << 20;

// Log of two steps with a line each.
std::vector<nlohmann::json> two_lines(const char* scenario, std::unique_ptr<device::Device> device, std::string& lines,
                                      int64_t& held) {
  ::setenv("BRIM_NVML_LIBRARY", BRIM_NVML_STAND_IN, 1);
  ::setenv("BRIM_NVML_SCENARIO", scenario, 1);
  const TinyJob t;
  TrainJob job = open_train_job(t.settings, {[](const std::string&) {}});
  if (device) job.device = std::move(device);
  std::filesystem::create_directories(t.out());
  const StepSchedule schedule(job.settings, job.train_set);
  TrainCallbacks callbacks;
  callbacks.say = [&](const std::string& line) { lines += line + "\n"; };
  TrainLog record(job);
  record.open("");
  StepReporter reporter(job, schedule, callbacks, record, [] { return kCounted; });
  for (int64_t step = 1; step <= 2; ++step)
    reporter.step_done({.number = step, .rows = 8, .tokens = 80}, static_cast<double>(step));
  held = reporter.held_bytes();
  ::unsetenv("BRIM_NVML_LIBRARY"), ::unsetenv("BRIM_NVML_SCENARIO");
  std::istringstream log(get_file(t.out() / "train_log.jsonl"));
  std::vector<nlohmann::json> rows;
  for (std::string line; std::getline(log, line);) rows.push_back(nlohmann::json::parse(line));
  return rows;
}

TEST(StepReporter, FormatsSpeed) {
  EXPECT_EQ(speed_text(46, 594, 2), "23 rows/s · 297 tokens/s");
  EXPECT_EQ(speed_text(3, 14, 2), "1 row/s · 7 tokens/s");
}

TEST(StepReporter, SamplesTheGpuOncePerLine) {
  std::string lines;
  int64_t held = 0;
  // Lost at the third sample, after those of the start and the first line.
  const auto rows = two_lines("pci=17|pci=65,util=87,mem=1000/8000,temp=54,power=412,lose=2",
                              std::make_unique<device::StandInCard>("0000:65:00.0"), lines, held);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0]["gpu_utilization"], 0.87);
  EXPECT_EQ(rows[0]["gpu_memory_used_bytes"], 1000 << 20);
  EXPECT_EQ(rows[0]["gpu_temperature_c"], 54);
  EXPECT_EQ(rows[0]["gpu_power_w"], 412);
  EXPECT_EQ(rows[0]["memory_used_bytes"], 300 << 20);  // this process's share, as reported by the stand-in
  EXPECT_HAS(lines, "GPU 87 % | memory 1000 MiB / 7.81 GiB | 54 °C | 412 W");
  for (const char* name : {"gpu_utilization", "gpu_memory_used_bytes", "gpu_temperature_c", "gpu_power_w"}) {
    ASSERT_TRUE(rows[1].contains(name)) << name;
    EXPECT_TRUE(rows[1][name].is_null()) << name;
  }
  EXPECT_EQ(rows[1]["memory_used_bytes"], kCounted);
  EXPECT_EQ(held, kCounted);
}

TEST(StepReporter, ReportsItsOwnCountWithoutADriverFigure) {
  for (const bool card : {false, true}) {
    std::string lines;
    int64_t held = 0;
    const auto rows = two_lines("pci=65,no=processes",
                                card ? std::make_unique<device::StandInCard>("0000:65:00.0") : nullptr, lines, held);
    ASSERT_EQ(rows.size(), 2u);
    for (const auto& row : rows) {
      EXPECT_EQ(row["memory_used_bytes"], kCounted);
      EXPECT_EQ(row.contains("gpu_utilization"), card);
    }
    EXPECT_EQ(held, kCounted);
    EXPECT_EQ(lines.find("GPU") != std::string::npos, card) << lines;  // a CPU run reports no GPU
  }
}

TEST(StepReporter, LogsTheLossOfEachHead) {
  TinyJob t("bert_encoder", 24);
  put_file(t.dir / "train.conll", TinyJob::conll(24, 1));
  put_file(t.dir / "val.conll", TinyJob::conll(12, 2));
  t.settings.task = TaskChoice::multi;
  t.settings.token_train_file = (t.dir / "train.conll").string();
  t.settings.token_validation_file = (t.dir / "val.conll").string();
  t.settings.num_train_epochs = 1;
  t.settings.logging_steps = 2;
  std::string lines;
  TrainCallbacks callbacks;
  callbacks.say = [&](const std::string& line) { lines += line + "\n"; };
  train(t.settings, callbacks);
  EXPECT_HAS(lines, " (classifier ");
  int64_t steps = 0, evaluations = 0;
  const auto check = [](const nlohmann::json& row, const std::string& prefix, double tolerance) {
    const auto of = [&](const char* key) { return row.at(prefix + key).get<double>(); };
    EXPECT_GT(of("sequence_loss"), 0);
    EXPECT_GT(of("token_loss"), 0);
    EXPECT_NEAR(of("sequence_loss") + of("token_loss"), of("loss"), tolerance);
  };
  const nlohmann::json state = json_of(t.out() / "trainer_state.json");
  for (const auto& row : state.at("log_history")) {
    const bool step = row.contains("loss");
    check(row, step ? "" : "eval_", 1e-9);
    ++(step ? steps : evaluations);
  }
  EXPECT_EQ(steps, 3);
  EXPECT_EQ(evaluations, 1);
}

// Steps are read back late, the last two together, but each is timed when it was done.
TEST(StepReporter, LastStepIsNotFasterThanTheOthers) {
  TinyJob t("bert_sequence", 480);
  t.settings.num_train_epochs = 1;
  t.settings.train_batch_size = 48;
  t.settings.eval_strategy = Strategy::no;
  t.run();
  std::istringstream log(get_file(t.out() / "train_log.jsonl"));
  std::vector<double> speeds, times;
  for (std::string line; std::getline(log, line);) {
    const auto row = nlohmann::json::parse(line);
    speeds.push_back(row.at("samples_per_second").get<double>());
    times.push_back(row.at("train_seconds").get<double>());
  }
  ASSERT_EQ(speeds.size(), 10u);
  EXPECT_TRUE(std::is_sorted(times.begin(), times.end()));
  const double fastest = *std::max_element(speeds.begin(), speeds.end() - 1);
  EXPECT_LT(speeds.back(), 20 * fastest) << "the others: " << fastest;  // hundreds of times without device times
}

}  // namespace
}  // namespace brim::train
