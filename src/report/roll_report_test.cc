// SPDX-License-Identifier: Apache-2.0
#include "report/roll_report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/test_files.h"
#include "report/markup_check.h"

namespace brim::report {
namespace {

TEST(RollReport, ReportsTheStartAndTheSkill) {
  rows::SeriesTable table;
  table.ids = {"A <b>", "flat"};
  table.values = {1, 2, 3, 4, 5, 6, 5, 5, 5, 5, 5, 5};
  table.begin = {0, 6, 12};
  table.first = {1, 1};
  table.numbered = true;
  const forecast::SeriesStore series(std::move(table));
  forecast::ForecastSettings s;
  s.warm = forecast::WarmStart::chain;
  s.target_column = "Adj Close";
  s.target_utilization = 85;
  s.batch_size = 8;
  forecast::NbeatsModel members;
  members.horizon = 1;
  members.lanes.resize(1);
  members.lanes[0].spec.lookback = 2;
  forecast::RollPlan plan;
  plan.steps = 70;
  plan.trainings.resize(2);
  plan.trainings[0].steps = 70;
  plan.trainings[1] = {forecast::RollTraining::Kind::fold, {}, {5}, 0, true, 7, 70, 1};
  forecast::RollRun run;
  run.lanes = {{true, false, 0.5F, {1, 0.5F}, {}}, {true, true, NAN, {NAN}, {}}};
  run.timeline = {{forecast::RollSpan::What::training, 0, 2.5, 2}, {forecast::RollSpan::What::saving, 2.5, 2.6, 2}};
  run.memory.limit_bytes = 12'000'000'000;
  run.memory.parts = {{memory::Tag::master, "lanes", 1000}};
  forecast::RollScore score;
  score.horizon = 1;
  score.skill_naive = 0.031;
  score.against_naive = {-2.5, 0.02};
  score.levels = {{80, 0.75, 0.1}};
  score.folds = {{"5", true, 2, 1, 7, {}, {}, {}, {}, 0.031, std::nan(""), 0.75, {0}}};
  score.model.mase = 0.9;
  score.baselines = {{forecast::Baseline::naive, {}, {}},
                     {forecast::Baseline::snaive, {}, {}},
                     {forecast::Baseline::theta, {0, 1, 0, 0, 0}, {-1.2, 0.3}}};
  score.best = 2;
  score.series = {{"A <b>", 1, 0.5, 0.5, 1, 0.5}, {"flat", 1, std::nan(""), 0, std::nan(""), std::nan("")}};
  score.drawn = {{"Best", 0.5, {0, 5, {6.5}, {{6}}, {{7}}, {6}}}};
  RollRecord record{s, series, members, plan, run, score, "cpu", "fp32", "NBEATS"};
  record.busy = 0.5;
  const std::string page = roll_html(record);
  EXPECT_EQ(check_markup(page).problem, "");
  for (const char* part : {"Better than naive by 3.1 % (Diebold–Mariano p = 0.02)",
                           "No significant difference from Theta, the best baseline: +10.0 %",
                           "Every forecast is the last value (λ = 0)", "continues from the weights and moments",
                           "revised after dividends", "1 lane of 2 failed", "50 % of the training time",
                           "Best: A &lt;b&gt;", "limit", "Timeline of the waves", "1 forecast of a series in a fold"})
    EXPECT_HAS(page, part);
  const auto j = nlohmann::json::parse(roll_json(record));
  EXPECT_EQ(j.at("busy"), 0.5);
  record.busy.reset();
  EXPECT_TRUE(nlohmann::json::parse(roll_json(record)).at("busy").is_null());
  EXPECT_HAS(roll_html(record), "device utilisation was not measured");
  EXPECT_EQ(j.at("warm"), "chain");
  EXPECT_EQ(j.at("lanes_failed"), 1);
  EXPECT_EQ(j.at("timeline")[0].at("what"), "training");
  EXPECT_EQ(j.at("timeline")[0].at("end"), 2.5);
  EXPECT_EQ(j.at("trainings")[1].at("starts_from"), 0);
  EXPECT_TRUE(j.at("folds")[0].at("skill_snaive").is_null());
  EXPECT_EQ(j.at("against_naive").at("p_value"), 0.02);
  EXPECT_EQ(j.at("best_baseline"), "theta");
  EXPECT_EQ(j.at("against_best").at("p_value"), 0.3);
}

}  // namespace
}  // namespace brim::report
