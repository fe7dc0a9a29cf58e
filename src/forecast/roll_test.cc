// SPDX-License-Identifier: Apache-2.0
// Rolling training: folds see no future data, and a run that was stopped, split into waves, extended or damaged gives
// the same forecasts as an uninterrupted one.
#include "forecast/roll.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <random>

#include "base/error.h"
#include "base/test_files.h"
#include "forecast/roll_score.h"

namespace brim::forecast {
namespace {

constexpr int64_t kHorizon = 3;

// Random walks with different start times; one ends early.
SeriesStore walks(int64_t points, int64_t poisoned_after = -1, float poison = 0) {
  rows::SeriesTable table;
  table.begin = {0};
  table.numbered = true;
  for (int64_t s = 0; s < 4; ++s) {
    std::mt19937_64 random(static_cast<uint64_t>(s));
    std::normal_distribution<float> normal;
    table.ids.push_back(fmt::format("s{}", s));
    const int64_t first = 1 + (s == 1 ? 20 : 0), last = s == 2 ? std::min<int64_t>(points, 50) : points;
    float level = 100;
    for (int64_t step = first; step <= last; ++step) {
      level += normal(random);
      table.values.push_back(poisoned_after >= 0 && step > poisoned_after ? poison : level);
    }
    table.begin.push_back(static_cast<int64_t>(table.values.size()));
    table.first.push_back(first);
  }
  return SeriesStore(std::move(table));
}

ForecastSettings roll_settings(std::initializer_list<std::pair<const char*, const char*>> more = {}) {
  ForecastSettings s;
  for (const auto& [key, value] : {std::pair("horizon", "3"),
                                   {"folds", "6"},
                                   {"step", "2"},
                                   {"refit", "2"},
                                   {"lookbacks", "2,3"},
                                   {"losses", "mae"},
                                   {"n_blocks", "1"},
                                   {"mlp_units", "16,16"},
                                   {"batch_size", "8"},
                                   {"max_steps", "30"},
                                   {"device", "cpu"},
                                   {"threads", "1"},
                                   {"memory_limit", "1GiB"},
                                   {"level", "50"}})
    apply_setting(s, key, value);
  for (const auto& [key, value] : more) apply_setting(s, key, value);
  apply_preset(s, {});
  return s;
}

struct Rolled {
  RollPlan plan;
  RollRun run;
  RollScore score;
  std::vector<std::vector<double>> folds;  // forecasts and bounds
};

Rolled roll(const ForecastSettings& s, const SeriesStore& series, const std::filesystem::path& output,
            const std::atomic<bool>* stop = nullptr, const std::function<void(const RollProgress&)>& progress = {}) {
  const NbeatsModel members = ensemble_of(s, series);
  EnsembleDevice on(s);
  Rolled r;
  const auto first = s.extend ? rolled_first_cutoff(output / "state") : std::nullopt;
  r.plan = plan_roll(s, series, members, first);
  r.run = run_roll(on, s, series, members, r.plan, output / "state", progress, stop);
  if (r.run.interrupted) return r;
  r.folds.resize(r.plan.folds.size());
  r.score = score_roll(s, series, members, r.plan, r.run, [&](const Fold& fold, const RolledForecast& f) {
    auto& all = r.folds[static_cast<size_t>(fold.index)];
    for (const auto* part : {&f.forecast, &f.low[0], &f.high[0]}) all.insert(all.end(), part->begin(), part->end());
  });
  return r;
}

bool same_bytes(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}
void expect_same(const Rolled& a, const Rolled& b) {
  ASSERT_EQ(a.folds.size(), b.folds.size());
  for (size_t k = 0; k < a.folds.size(); ++k) EXPECT_TRUE(same_bytes(a.folds[k], b.folds[k])) << k;
}

TEST(Roll, PlansTheBaseOfEachTraining) {
  const SeriesStore series = walks(80);
  const auto planned = [&](std::initializer_list<std::pair<const char*, const char*>> more) {
    const ForecastSettings s = roll_settings(more);
    return plan_roll(s, series, ensemble_of(s, series));
  };
  const RollPlan none = planned({});
  ASSERT_EQ(none.trainings.size(), 4u);  // calibration, folds 0, 2 and 4
  EXPECT_EQ(none.rounds, 1);
  EXPECT_EQ(none.folds.back().cutoff, 77);
  // The calibration outcomes are known before the first fold.
  EXPECT_EQ(none.trainings[0].kind, RollTraining::Kind::calibration);
  EXPECT_EQ(none.trainings[0].cutoffs.back() + kHorizon, none.folds[0].cutoff);
  EXPECT_EQ(none.training_of, (std::vector<int64_t>{1, 1, 2, 2, 3, 3}));

  const RollPlan anchor = planned({{"warm", "anchor"}, {"anchor_every", "4"}});
  ASSERT_EQ(anchor.trainings.size(), 6u);  // calibration, base, fold 0, fold 2, base, fold 4
  EXPECT_EQ(anchor.rounds, 2);
  EXPECT_EQ(anchor.trainings[2].base, 1);
  EXPECT_EQ(anchor.trainings[3].base, 1);
  EXPECT_EQ(anchor.trainings[5].base, 4);
  EXPECT_EQ(anchor.trainings[5].steps, 3);  // a tenth
  EXPECT_LE(anchor.trainings[1].fold.cutoff, anchor.trainings[2].fold.cutoff);

  const RollPlan chain = planned({{"warm", "chain"}, {"warm_steps", "7"}});
  EXPECT_EQ(chain.rounds, 3);
  EXPECT_EQ(chain.trainings[3].base, 2);
  EXPECT_EQ(chain.trainings[3].steps_before, 37);
}

TEST(Roll, StopsEarlyOnTheLastKnownHorizon) {
  const ForecastSettings s = roll_settings({{"early_stop_patience_steps", "1"}, {"val_check_steps", "5"}});
  const TempDir dir, again, poisoned;
  const Rolled first = roll(s, walks(80), dir.path());
  expect_same(first, roll(s, walks(80), again.path()));
  const Rolled other = roll(s, walks(80, first.plan.folds[2].cutoff, 1e30F), poisoned.path());
  for (size_t k = 0; k <= 2; ++k) EXPECT_TRUE(same_bytes(other.folds[k], first.folds[k])) << k;
  const TempDir plain;
  EXPECT_FALSE(same_bytes(roll(roll_settings({}), walks(80), plain.path()).folds[0], first.folds[0]));
}

// Overwrites everything after a cutoff: no byte of its forecasts and intervals may change.
TEST(Roll, FutureDataDoesNotChangeAFold) {
  for (const char* warm : {"none", "anchor", "chain"}) {
    const ForecastSettings s = roll_settings({{"warm", warm}, {"gap", "1"}, {"window", "40"}, {"losses", "mase"}});
    const TempDir clean_dir;
    const Rolled clean = roll(s, walks(80), clean_dir.path());
    for (const size_t k : {size_t{0}, size_t{3}})
      for (const float poison : {1e30F, std::nanf("")}) {
        const TempDir dir;
        const Rolled poisoned = roll(s, walks(80, clean.plan.folds[k].cutoff, poison), dir.path());
        for (size_t i = 0; i <= k; ++i) EXPECT_TRUE(same_bytes(poisoned.folds[i], clean.folds[i])) << warm << " " << i;
        if (k == 0) {
          EXPECT_FALSE(same_bytes(poisoned.folds[5], clean.folds[5]));  // includes the poisoned data
        }
      }
  }
}

TEST(Roll, DrawsTheBestMedianAndWorstSeries) {
  const TempDir dir;
  const Rolled r = roll(roll_settings(), walks(60), dir.path() / "r");
  ASSERT_EQ(r.score.drawn.size(), 3u);  // among the series forecast by the last fold
  std::vector<double> errors;
  for (const SeriesScore& one : r.score.series)
    if (one.id != "s2") errors.push_back(one.mase);  // s2 has ended by then
  std::sort(errors.begin(), errors.end());
  for (size_t i = 0; i < 3; ++i) {
    const DrawnForecast& drawn = r.score.drawn[i];
    EXPECT_EQ(drawn.mase, errors[i]) << drawn.which;
    const auto row = static_cast<size_t>(std::min<int64_t>(drawn.forecast.series, 2));
    std::vector<double> own;
    for (const auto* part : {&drawn.forecast.forecast, &drawn.forecast.low[0], &drawn.forecast.high[0]})
      own.insert(own.end(), part->begin(), part->end());
    const auto first = r.folds.back().begin() + static_cast<std::ptrdiff_t>(row * own.size());
    EXPECT_TRUE(same_bytes(own, {first, first + static_cast<std::ptrdiff_t>(own.size())})) << drawn.which;
  }
}

TEST(Roll, ResumesFromAnyStepToTheSameBytes) {
  for (const char* warm : {"none", "anchor", "chain"}) {
    const ForecastSettings s = roll_settings({{"warm", warm}, {"save_steps", "4"}, {"max_steps", "70"}});
    const SeriesStore series = walks(80);
    const TempDir whole_dir, dir;
    const Rolled whole = roll(s, series, whole_dir.path());
    std::atomic<bool> stop{true};  // at the first step
    for (int stops = 0; stops < 3; ++stops) EXPECT_TRUE(roll(s, series, dir.path(), &stop).run.interrupted);
    stop = false;
    int reports = 0;
    Rolled stopped = roll(s, series, dir.path(), &stop, [&](const RollProgress&) { stop = ++reports == 2; });
    EXPECT_TRUE(stopped.run.interrupted);
    expect_same(roll(s, series, dir.path()), whole);
    const Rolled again = roll(s, series, dir.path());
    EXPECT_EQ(again.run.waves, 0);  // everything was finished already
    expect_same(again, whole);
  }
}

TEST(Roll, WavesAndDamagedFilesDoNotChangeResults) {
  ForecastSettings s = roll_settings();
  const SeriesStore series = walks(80);
  const TempDir dir, tight_dir;
  const Rolled whole = roll(s, series, dir.path());
  EXPECT_EQ(whole.run.waves, 1);
  const EnsemblePlan& memory = whole.run.memory;
  s.memory_limit = plan::MemoryLimit::read(
      fmt::format("{}B", memory.context_bytes + (memory.peak_bytes - memory.context_bytes) / 2));
  const Rolled tight = roll(s, series, tight_dir.path());
  EXPECT_GT(tight.run.waves, 1);
  EXPECT_LE(tight.run.memory.peak_bytes, tight.run.memory.limit_bytes);
  expect_same(tight, whole);
  // A corrupted byte in a finished file: the lanes are recomputed.
  const auto file = dir.path() / "state" / "lanes-0000000.bin";
  std::string bytes = read_file(file);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  std::ofstream(file, std::ios::binary) << bytes;
  const Rolled repaired = roll(roll_settings(), series, dir.path());
  EXPECT_EQ(repaired.run.resumed_lanes, 0);
  expect_same(repaired, whole);
}

TEST(Roll, NewPointsExtendARun) {
  for (const char* warm : {"none", "anchor", "chain"}) {
    ForecastSettings s = roll_settings({{"warm", warm}});
    const TempDir dir, whole_dir;
    const Rolled before = roll(s, walks(80), dir.path());
    EXPECT_HAS(error_of(ErrorCode::cannot_write, [&] { roll(s, walks(84), dir.path()); }), "`extend=true`");
    s.extend = true;
    const Rolled after = roll(s, walks(84), dir.path());
    EXPECT_GT(after.run.resumed_lanes, 0);
    ASSERT_EQ(after.folds.size(), 8u);
    for (size_t k = 0; k < before.folds.size(); ++k) EXPECT_TRUE(same_bytes(after.folds[k], before.folds[k])) << k;
    s.extend = false;
    s.folds = 8;
    expect_same(roll(s, walks(84), whole_dir.path()), after);
    // A rewritten history does not match the run.
    s.extend = true;
    EXPECT_HAS(error_of(ErrorCode::cannot_write, [&] { roll(s, walks(84, 40, 7), dir.path()); }),
               "series 's0' at 41 is");
  }
}

// Theta and ETS are fitted to the last 300 points, all of which are missing, but the lookback reaches farther.
TEST(Roll, BaselinesReadThePointsBeforeALongOutage) {
  rows::SeriesTable table;
  table.begin = {0};
  table.numbered = true;
  for (const char* id : {"a", "b"}) {
    table.ids.emplace_back(id);
    for (int t = 0; t < 420; ++t)
      table.values.push_back(*id == 'b' && t > 60 && t < 418 ? std::nanf("") : static_cast<float>(t % 9));
    table.begin.push_back(static_cast<int64_t>(table.values.size()));
    table.first.push_back(1);
  }
  ForecastSettings s = roll_settings({{"folds", "1"}, {"max_steps", "2"}, {"input_size", "380"}, {"shrink", "none"}});
  s.lookbacks.clear();
  const TempDir dir;
  const Rolled r = roll(s, SeriesStore(std::move(table)), dir.path());
  EXPECT_EQ(r.score.folds.back().series, 2);
  ASSERT_EQ(r.score.baselines.size(), 4u);
  for (const BaselineScore& b : r.score.baselines)
    EXPECT_TRUE(std::isfinite(b.scores.mae)) << baseline_name(b.baseline);
}

TEST(Roll, RejectsOtherSettingsByName) {
  const SeriesStore series = walks(80);
  const TempDir dir;
  roll(roll_settings(), series, dir.path());
  EXPECT_HAS(error_of(ErrorCode::cannot_write,
                      [&] {
                        roll(roll_settings({{"max_steps", "31"}}), series, dir.path());
                      }),
             "with `max_steps=30`, but this run has `max_steps=31`");
  // Settings applied after forecasting may change without retraining.
  const Rolled shrunk = roll(roll_settings({{"shrink", "0"}}), series, dir.path());
  EXPECT_EQ(shrunk.run.waves, 0);
  EXPECT_NEAR(shrunk.score.skill_naive, 0, 1e-12);  // λ = 0 is the naive forecast
  EXPECT_EQ(shrunk.score.folds[0].left_out, 1);     // s2 has ended
  EXPECT_EQ(roll(roll_settings({{"level", "90"}}), series, dir.path()).run.waves, 0);
  // Quantile models are trained for fixed levels.
  const TempDir learnt;
  roll(roll_settings({{"losses", "quantile"}}), series, learnt.path());
  EXPECT_HAS(error_of(ErrorCode::cannot_write,
                      [&] {
                        roll(roll_settings({{"losses", "quantile"}, {"level", "90"}}), series, learnt.path());
                      }),
             "with `level=50`, but this run has `level=50,90`");
}

}  // namespace
}  // namespace brim::forecast
