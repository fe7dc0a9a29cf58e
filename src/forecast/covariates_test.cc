// SPDX-License-Identifier: Apache-2.0
// Covariates: rows of a window, scaling, gradients of the network, independence of waves, and a target that depends on
// a covariate.
#include "forecast/covariates.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/error.h"
#include "base/test_files.h"
#include "forecast/ensemble.h"
#include "forecast/roll_header.h"
#include "forecast/state_file.h"

namespace brim::forecast {
namespace {

using rows::CovariateKind;

// Random walks that add 20 on days with a promotion, which is known ahead; "visits" is known up to the last value.
struct Promoted {
  std::vector<std::vector<float>> y, promotion, visits;
  std::vector<float> size;
  std::vector<std::string> names;  // if not empty, promotions are indices of these categories

  Promoted(int64_t count, int64_t points, int64_t ahead) {
    std::mt19937 random(3);
    for (int64_t i = 0; i < count; ++i) {
      y.emplace_back();
      promotion.emplace_back();
      visits.emplace_back();
      size.push_back(static_cast<float>(i));
      double level = 100;
      for (int64_t t = 0; t < points + ahead; ++t) {
        const bool on = random() % 4 == 0;
        level += static_cast<double>(random() % 101) / 100 - 0.5;
        promotion.back().push_back(on ? 1.0f : 0.0f);
        if (t < points) y.back().push_back(static_cast<float>(level + (on ? 20 : 0)));
        if (t < points) visits.back().push_back(static_cast<float>(random() % 50));
      }
    }
  }

  SeriesStore store(bool covariates = true) const {
    rows::SeriesTable table;
    table.numbered = true;
    rows::CovariateValues future, past, fixed;
    future.column = {"promotion", CovariateKind::future, !names.empty()};
    future.categories = names;
    past.column = {"visits", CovariateKind::past};
    fixed.column = {"size", CovariateKind::fixed};
    const auto put = [](rows::CovariateValues& to, const std::vector<float>& values) {
      to.values.insert(to.values.end(), values.begin(), values.end());
      to.begin.push_back(static_cast<int64_t>(to.values.size()));
    };
    for (size_t i = 0; i < y.size(); ++i) {
      table.ids.push_back(fmt::format("s{}", i));
      table.first.push_back(1);
      table.values.insert(table.values.end(), y[i].begin(), y[i].end());
      table.begin.push_back(static_cast<int64_t>(table.values.size()));
      table.last_row.push_back(fmt::format("a.csv: line {}", 10 * (i + 1)));
      put(future, promotion[i]);
      put(past, visits[i]);
      put(fixed, {size[i]});
    }
    if (covariates) table.covariates = {future, past, fixed};
    return SeriesStore(std::move(table));
  }
};

ForecastSettings settings_of(std::initializer_list<std::pair<const char*, const char*>> more = {}) {
  ForecastSettings s;
  for (const auto& [key, value] : std::vector<std::pair<const char*, const char*>>{{"horizon", "4"},
                                                                                   {"lookbacks", "2,3"},
                                                                                   {"losses", "mae"},
                                                                                   {"n_blocks", "1"},
                                                                                   {"mlp_units", "32,32"},
                                                                                   {"batch_size", "32"},
                                                                                   {"max_steps", "300"},
                                                                                   {"device", "cpu"},
                                                                                   {"threads", "1"},
                                                                                   {"memory_limit", "1GiB"}})
    apply_setting(s, key, value);
  for (const auto& [key, value] : more) apply_setting(s, key, value);
  apply_preset(s, {});
  return s;
}

TEST(Covariates, RowsHoldTheStretchOfEachWindow) {
  const Promoted data(2, 6, 3);
  const SeriesStore series = data.store();
  const CovariateSpec spec = fit_covariates(series, {}, 2);
  const CovariateShape shape = spec.shape(3);
  EXPECT_EQ(shape.future, 4);  // a constant and one column
  EXPECT_EQ(shape.past, 4);
  EXPECT_EQ(shape.inputs(3) % 8, 0);
  const CovariateTable table = encode_covariates(spec, series, 3);
  EXPECT_EQ(table.rows, 2 * (6 + 2 + 3));
  const CovariateInput &promotion = spec.columns[0], &visits = spec.columns[1], &size = spec.columns[2];
  // Series 1, cut at 5: points 3 and 4 before it, 5 to 7 after it.
  const auto row = static_cast<size_t>(table.row(1, 5));
  for (size_t k = 0; k < 5; ++k) {
    EXPECT_EQ(table.future[(row + k) * 4], 1);
    EXPECT_NEAR(table.future[(row + k) * 4 + 1], (data.promotion[1][3 + k] - promotion.mean) / promotion.deviation,
                1e-5);
  }
  for (size_t k = 0; k < 2; ++k)
    EXPECT_NEAR(table.past[(row + k) * 4], (data.visits[1][3 + k] - visits.mean) / visits.deviation, 1e-5);
  EXPECT_NEAR(table.fixed[row * static_cast<size_t>(shape.fixed)], (1 - size.mean) / size.deviation, 1e-5);
  EXPECT_NO_THROW(require_future(spec, series, 3));
  EXPECT_HAS(error_of(ErrorCode::bad_data, [&] { require_future(spec, series, 4); }),
             "a.csv: line 10: series 's0': column promotion has no value at 10");
}

TEST(Covariates, ScalesBySeriesOnlyIfSeriesDiffer) {
  Promoted data(3, 40, 0);
  EXPECT_FALSE(fit_covariates(data.store(), {}, 2).columns[1].by_series);
  for (float& v : data.visits[2]) v += 1000;
  const SeriesStore series = data.store();
  const CovariateSpec spec = fit_covariates(series, {}, 2);
  EXPECT_TRUE(spec.columns[1].by_series);
  const CovariateTable table = encode_covariates(spec, series, 1);
  for (const float v : table.past) EXPECT_LT(std::fabs(v), 4);
  const std::vector<int64_t> known = {20, 20, 20};
  Promoted other = data;
  for (auto& visits : other.visits)
    for (size_t t = 20; t < visits.size(); ++t) visits[t] = 1e6f;
  EXPECT_EQ(fit_covariates(other.store(), {}, 2, known).columns[1].mean,
            fit_covariates(series, {}, 2, known).columns[1].mean);
}

TEST(Covariates, CalendarFeaturesFollowTheFrequency) {
  const auto count = [](const char* frequency) { return calendar_features(*rows::parse_frequency(frequency)).size(); };
  EXPECT_EQ(count("H"), 3u);
  EXPECT_EQ(count("B"), 3u);
  EXPECT_EQ(count("W"), 1u);
  EXPECT_EQ(count("M"), 1u);
  EXPECT_EQ(count("Y"), 0u);
  rows::SeriesTable table;
  table.ids = {"a"};
  table.values = {1, 2, 3};
  table.begin = {0, 3};
  table.first = {rows::parse_timestamp("2024-03-01")->value};  // a Friday
  table.frequency = *rows::parse_frequency("D");
  const SeriesStore series(std::move(table));
  const CovariateSpec spec = fit_covariates(series, {CalendarFeature::weekday}, 1);
  const CovariateTable rows = encode_covariates(spec, series, 4);
  rows::SeriesTable numbered;
  numbered.ids = {"a"};
  numbered.values = {1, 2, 3};
  numbered.begin = {0, 3};
  numbered.first = {1};
  numbered.numbered = true;
  EXPECT_HAS(error_of(ErrorCode::bad_data, [&] { encode_covariates(spec, SeriesStore(std::move(numbered)), 4); }),
             "calendar features require dates");
  const std::vector<float> weekend = {0, 1, 1, 0, 0, 0, 0};  // after a row of history
  for (size_t t = 0; t < weekend.size(); ++t) EXPECT_EQ(rows.future[(t + 1) * 4 + 3], weekend[t]) << t;
}

// The gradient of the loss in a random direction of each parameter, against a difference of losses.
TEST(Covariates, GradientsMatchDifferences) {
  const Promoted data(3, 40, 5);
  const SeriesStore series = data.store();
  ForecastSettings s = settings_of({{"losses", "mse"}, {"stack_types", "exogenous,generic,trend"}, {"lookbacks", "2"}});
  const NbeatsModel model = ensemble_of(s, series);
  const CovariateTable table = encode_covariates(model.covariates, series, 4);
  const auto device = device::open_cpu_device(1);
  WaveSpec spec = training_spec(ops::Precision::fp32, 1, s, model);
  spec.options.windows = 16;
  spec.options.parts = 2;
  spec.options.recompute = true;
  spec.covariates = &table;
  spec.lanes = {model.lanes[0].spec};
  Wave wave(*device, spec, series, {}, ops::Sampling::series, nullptr);
  NbeatsState& state = wave.state();
  const std::vector<float> start = draw_lane(spec.shape, state.layout(), 7, model.lanes[0].spec.lookback);
  state.put_rows(wave.stream(), 0, std::vector{ops::adamw_row(0, 0.9f, 0.999f, 1e-8f, 0, 1)});
  const auto loss_at = [&](const std::vector<float>& slab) {
    state.upload(wave.stream(), 0, slab);
    state.set_step(wave.stream(), 0);
    wave.step();
    return static_cast<double>(state.losses(wave.stream(), 0, 1)[0]);
  };
  loss_at(start);
  const std::vector<float> gradient = state.gradients(wave.stream(), 0);
  std::mt19937 random(5);
  for (const NbeatsParam& p : state.layout().params) {
    const NbeatsSize size = true_size(spec.shape, p, model.lanes[0].spec.lookback);
    std::vector<float> up = start, down = start;
    double along = 0, norm = 0;
    for (int64_t row = 0; row < size.rows; ++row)
      for (int64_t col = 0; col < size.cols; ++col) {
        const auto at =
            static_cast<size_t>(p.offset + padded_index(spec.shape, p, model.lanes[0].spec.lookback, row, col));
        const double noise = static_cast<double>(random() % 2001) / 1000 - 1, g = static_cast<double>(gradient[at]);
        const double step =
            2e-4 * (g > 0 ? 1 : -1) * (1 + noise / 2);  // along the gradient, so that sums do not cancel
        up[at] += static_cast<float>(step);
        down[at] -= static_cast<float>(step);
        along += g * step;
        norm += g * g;
      }
    EXPECT_GT(norm, 0) << p.name;
    EXPECT_NEAR((loss_at(up) - loss_at(down)) / 2, along, 0.03 * std::fabs(along) + 1e-5) << p.name;
  }
}

TEST(Covariates, LanesDoNotDependOnTheWave) {
  const Promoted data(3, 60, 4);
  const SeriesStore series = data.store();
  const ForecastSettings s = settings_of({{"max_steps", "5"}});
  const NbeatsModel model = ensemble_of(s, series);
  const CovariateTable table = encode_covariates(model.covariates, series, 4);
  const auto device = device::open_cpu_device(1);
  WaveSpec spec = training_spec(ops::Precision::fp32, 1, s, model);
  spec.covariates = &table;
  const auto trained = [&](std::vector<ops::LaneSpec> lanes) {
    spec.lanes = std::move(lanes);
    WaveTraining job;
    job.spec = spec;
    for (size_t g = 0; g < spec.lanes.size(); ++g) job.lanes.push_back(static_cast<int64_t>(g));
    job.steps = 5;
    return train_wave(*device, s, series, job, nullptr, {}, nullptr);
  };
  const TrainedWave both = trained({model.lanes[0].spec, model.lanes[1].spec});
  const TrainedWave second = trained({model.lanes[1].spec});
  EXPECT_EQ(both.lanes[1].state.slab, second.lanes[0].state.slab);
}

TEST(Covariates, HalveTheErrorIfTheTargetDependsOnThem) {
  const Promoted all(6, 124, 0);
  Promoted known = all;
  for (auto& y : known.y) y.resize(120);
  for (auto& visits : known.visits) visits.resize(120);
  const auto error = [&](bool covariates) {
    const ForecastSettings s = settings_of({{"max_steps", "1500"}, {"batch_size", "64"}});
    EnsembleDevice on(s);
    const SeriesStore series = known.store(covariates);
    NbeatsModel model = ensemble_of(s, series);
    EXPECT_EQ(model.lanes[0].stacks[0].kind, covariates ? StackKind::exogenous : StackKind::generic);
    train_ensemble(on, s, series, model, {}, {}, nullptr);
    TempDir dir;
    save_nbeats(dir.path() / "model", model);
    const EnsembleForecasts f = predict_ensemble(on, load_nbeats(dir.path() / "model"), series, false, {}, nullptr);
    double sum = 0;
    for (size_t i = 0; i < all.y.size(); ++i)
      for (size_t h = 0; h < 4; ++h)
        sum += std::fabs(f.point(static_cast<int64_t>(i))[h] - static_cast<double>(all.y[i][120 + h]));
    return sum / 24;
  };
  const double with = error(true), without = error(false);
  EXPECT_LT(with, 0.5 * without) << without;
}

TEST(Covariates, CategoriesAreThoseOfKnownPoints) {
  Promoted data(2, 40, 0);
  data.names = {"yes", "no", "maybe"};
  data.promotion[1][30] = 2;
  const SeriesStore series = data.store();
  const std::vector<int64_t> known = {40, 30}, more = {40, 31}, unknown = {40, 0};
  EXPECT_EQ(fit_covariates(series, {}, 2, known).columns[0].categories, (std::vector<std::string>{"no", "yes"}));
  EXPECT_EQ(fit_covariates(series, {}, 2, more).columns[0].categories.size(), 3u);
  EXPECT_EQ(fit_covariates(series, {}, 2, known).columns[2].mean, 0.5);
  EXPECT_EQ(fit_covariates(series, {}, 2, unknown).columns[2].mean, 0) << "static values of a later series";
}

// A run of two or more folds over a store, with its state in `state`.
RollRun rolled(const ForecastSettings& s, const SeriesStore& series, const std::filesystem::path& state) {
  const NbeatsModel members = ensemble_of(s, series);
  EnsembleDevice on(s);
  const RollPlan plan = plan_roll(s, series, members, s.extend ? rolled_first_cutoff(state) : std::nullopt);
  return run_roll(on, s, series, members, plan, state, {}, nullptr);
}

// Forecasts of the first fold stay the same, bit for bit, if everything that a forecaster cannot know changes.
TEST(Covariates, RollingRunsReadNothingAfterTheCutoff) {
  Promoted data(3, 80, 0);
  data.names = {"none", "sale"};
  const ForecastSettings s = settings_of({{"max_steps", "20"}, {"folds", "2"}, {"step", "4"}, {"shrink", "none"}});
  const auto forecasts = [&] {
    const SeriesStore series = data.store();
    const NbeatsModel members = ensemble_of(s, series);
    EnsembleDevice on(s);
    TempDir dir;
    const RollPlan plan = plan_roll(s, series, members);
    const RollRun run = run_roll(on, s, series, members, plan, dir.path() / "state", {}, nullptr);
    EXPECT_EQ(plan.folds[0].cutoff, 72);
    std::vector<std::vector<float>> lanes;
    for (size_t m = 0; m < members.lanes.size(); ++m)
      lanes.push_back(run.lanes[static_cast<size_t>(plan.training_of[0]) * members.lanes.size() + m].forecasts);
    return lanes;
  };
  const auto before = forecasts();
  data.names.emplace_back("discount");  // first by name
  for (size_t i = 0; i < 3; ++i)
    for (size_t t = 72; t < 80; ++t) {
      data.y[i][t] = 7;
      data.visits[i][t] = 1e6f;
      if (t >= 76) data.promotion[i][t] = 2;  // the horizon of the first fold is known
    }
  EXPECT_EQ(forecasts(), before);
  for (size_t i = 0; i < 3; ++i) data.promotion[i][73] = 1 - data.promotion[i][73];
  EXPECT_NE(forecasts(), before);
}

// A category that appears later changes neither the inputs of earlier folds nor the meaning of kept weights.
TEST(Covariates, ExtendedRunsKeepTheirCategories) {
  ForecastSettings s = settings_of({{"max_steps", "20"}, {"folds", "2"}, {"step", "4"}, {"warm", "chain"}});
  Promoted data(3, 84, 0);
  data.names = {"no", "yes", "maybe"};  // sorted before the others
  Promoted early = data;
  early.names.pop_back();
  for (size_t i = 0; i < 3; ++i) {
    data.promotion[i][82] = 2;
    early.y[i].resize(80);
    early.visits[i].resize(80);
    early.promotion[i].resize(80);
  }
  const TempDir dir, whole_dir;
  const RollRun before = rolled(s, early.store(), dir.path() / "state");
  s.extend = true;
  const RollRun after = rolled(s, data.store(), dir.path() / "state");
  EXPECT_EQ(after.resumed_lanes, static_cast<int64_t>(before.lanes.size()));
  s.extend = false;
  s.folds = 3;
  const RollRun whole = rolled(s, data.store(), whole_dir.path() / "state");
  ASSERT_EQ(whole.lanes.size(), after.lanes.size());
  for (size_t i = 0; i < whole.lanes.size(); ++i) EXPECT_EQ(whole.lanes[i].forecasts, after.lanes[i].forecasts) << i;
  for (size_t i = 0; i < before.lanes.size(); ++i) EXPECT_EQ(before.lanes[i].forecasts, whole.lanes[i].forecasts) << i;
}

TEST(Covariates, ResumedRunsRefuseChangedValues) {
  ForecastSettings s = settings_of({{"max_steps", "5"}, {"folds", "2"}, {"step", "4"}});
  const Promoted data(3, 80, 6);
  const TempDir dir;
  const auto state = dir.path() / "state";
  rolled(s, data.store(), state);
  const auto refused = [&](const Promoted& other) {
    return error_of(ErrorCode::cannot_write, [&] { rolled(s, other.store(), state); });
  };
  Promoted promotion = data, visits = data, later = data;
  promotion.promotion[1][77] = 5;  // in the fold period
  visits.visits[2][79] = 5e3f;
  EXPECT_HAS(refused(promotion), "the values of column promotion in series 's1' differ");
  EXPECT_HAS(refused(visits), "the values of column visits in series 's2' differ");
  for (auto& values : later.promotion) values[82] = 5;  // after the horizon of the last fold
  EXPECT_EQ(rolled(s, later.store(), state).waves, 0);
  // Headers of earlier versions have no hashes.
  const auto was = read_header(state);
  ASSERT_TRUE(was.has_value());
  EXPECT_EQ(was->covariates.size(), 9u);
  {
    StateWriter file(state / "run.bin", "rolling run");
    file.put<uint64_t>(was->lines.size());
    for (const std::string& line : was->lines) file.text(line);
    file.put(was->first_cutoff);
    file.put(was->folds);
    file.put<uint64_t>(was->ids.size());
    for (const std::string& id : was->ids) file.text(id);
    file.list(was->first_steps);
    file.list(was->begin);
    file.list(was->values);
    file.commit();
  }
  EXPECT_EQ(rolled(s, data.store(), state).waves, 0);
  EXPECT_EQ(read_header(state)->covariates.size(), 9u);
  Promoted early = data;
  for (auto& values : early.promotion) values[3] = 5;
  EXPECT_HAS(refused(early), "the values of column promotion in series 's0' differ");
}

}  // namespace
}  // namespace brim::forecast
