// SPDX-License-Identifier: Apache-2.0
// Ensembles: lanes as settings ask for them, learning what a pattern is, the same weights in any number of waves, and a
// limit that is kept or refused.
#include "forecast/ensemble.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/test_files.h"

namespace brim::forecast {
namespace {

// Series that repeat every four points, each at a level of its own. (Mase would learn nothing from them: points a
// season apart are equal, so there is nothing to divide by.)
SeriesStore repeating(int64_t count, int64_t length) {
  rows::SeriesTable table;
  table.begin = {0};
  for (int64_t s = 0; s < count; ++s) {
    table.ids.push_back(fmt::format("s{}", s));
    for (int64_t t = 0; t < length; ++t)
      table.values.push_back(static_cast<float>(100 + 10 * s + std::array{0, 3, 6, 3}[static_cast<size_t>(t % 4)]));
    table.begin.push_back(static_cast<int64_t>(table.values.size()));
    table.first.push_back(1);
  }
  table.numbered = true;
  return SeriesStore(std::move(table));
}

ForecastSettings small_settings() {
  ForecastSettings s;
  for (const auto& [key, value] : std::vector<std::pair<const char*, const char*>>{{"horizon", "4"},
                                                                                   {"lookbacks", "2,3"},
                                                                                   {"losses", "smape,mae"},
                                                                                   {"n_blocks", "2"},
                                                                                   {"mlp_units", "32,32"},
                                                                                   {"batch_size", "32"},
                                                                                   {"max_steps", "300"},
                                                                                   {"season", "4"},
                                                                                   {"device", "cpu"},
                                                                                   {"threads", "2"},
                                                                                   {"memory_limit", "1GiB"}})
    apply_setting(s, key, value);
  apply_preset(s, {});
  return s;
}

TEST(Ensemble, HasALaneForEachLookbackLossAndRepeat) {
  ForecastSettings s = small_settings();
  s.repeats = 3;
  const NbeatsModel model = ensemble_of(s, repeating(3, 60));
  ASSERT_EQ(model.lanes.size(), 12u);
  EXPECT_EQ(model.lanes[1].spec.lookback, 12);
  EXPECT_EQ(model.lanes[2].spec.loss, ops::ForecastLoss::mae);
  EXPECT_NE(model.lanes[0].spec.seed, model.lanes[4].spec.seed);
  EXPECT_EQ(model.lanes[0].spec.history, 40);
  s.learning_rate = 8;
  EXPECT_EQ(rate_of(s, 0, 300), 8);
  EXPECT_EQ(rate_of(s, 100, 300), 4);
  EXPECT_EQ(rate_of(s, 299, 300), 2);
  s.max_steps = 0;
  s.epochs = 2;
  EXPECT_EQ(steps_of(s, repeating(3, 60)), std::llround(2 * 3 * 40 / 32.0));
}

TEST(Ensemble, RefusesWhatCannotLearn) {
  const auto message = [](const auto& change) {
    ForecastSettings s = small_settings();
    change(s);
    try {
      ensemble_of(s, repeating(3, 60));
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::usage);
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_NE(message([](auto& s) {
              s.season = 8;
              s.losses = {ops::ForecastLoss::mase};
            }).find("a season of 8 apart"),
            std::string::npos);
  EXPECT_NE(message([](auto& s) { s.losses = {ops::ForecastLoss::quantile}; }).find("quantile"), std::string::npos);
  EXPECT_NE(message([](auto& s) { s.widths = {12, 12}; }).find("multiples of 8"), std::string::npos);
}

TEST(Ensemble, LearnsAPatternAndIsTheSameInAnyNumberOfWaves) {
  const SeriesStore series = repeating(5, 61);
  ForecastSettings s = small_settings();
  EnsembleDevice on(s);
  NbeatsModel model = ensemble_of(s, series);
  int64_t told = 0;
  const TrainedEnsemble whole = train_ensemble(
      on, s, series, model, [&](const EnsembleProgress& p) { told = p.step; }, nullptr);
  EXPECT_EQ(told, 300);
  EXPECT_EQ(whole.plan.waves, 1);
  EXPECT_LE(whole.plan.peak_bytes, whole.plan.limit_bytes);
  ASSERT_EQ(model.lanes.size(), 4u);
  const std::vector<double> forecasts = predict_ensemble(on, model, series, {}, nullptr);
  for (size_t i = 0; i < forecasts.size(); ++i) {
    const double came = 100 + 10.0 * static_cast<double>(i / 4) + std::array{3, 6, 3, 0}[i % 4];
    EXPECT_NEAR(forecasts[i], came, 1) << i;
  }

  const TempDir dir;
  save_nbeats(dir.path() / "model", model);
  EXPECT_EQ(predict_ensemble(on, load_nbeats(dir.path() / "model"), series, {}, nullptr), forecasts);

  // Room for two lanes at a time.
  WaveSpec spec;
  spec.shape = lane_shape(model, model.lanes[1]);
  spec.options.windows = s.windows_per_step();
  spec.threads = on.threads();
  const int64_t two = whole.plan.context_bytes + total_bytes(wave_parts(spec, 2, series, device::DeviceKind::cpu));
  s.memory_limit = plan::MemoryLimit::read(fmt::format("{}B", two));
  EnsembleDevice tight(s);
  NbeatsModel again = ensemble_of(s, series);
  const TrainedEnsemble parts = train_ensemble(tight, s, series, again, {}, nullptr);
  EXPECT_EQ(parts.plan.waves, 2);
  for (size_t g = 0; g < model.lanes.size(); ++g) EXPECT_EQ(again.lanes[g].slab, model.lanes[g].slab) << g;

  s.memory_limit = plan::MemoryLimit::read(fmt::format("{}B", whole.plan.context_bytes + 4096));
  try {
    EnsembleDevice none(s);
    NbeatsModel unfit = ensemble_of(s, series);
    train_ensemble(none, s, series, unfit, {}, nullptr);
    FAIL() << "it cannot fit";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::does_not_fit) << e.what();
    EXPECT_NE(std::string(e.what()).find("One lane at a time needs"), std::string::npos) << e.what();
  }
}

TEST(Ensemble, StopsWhenAskedTo) {
  const SeriesStore series = repeating(3, 60);
  ForecastSettings s = small_settings();
  s.max_steps = 1'000'000;
  EnsembleDevice on(s);
  NbeatsModel model = ensemble_of(s, series);
  std::atomic<bool> stop{false};
  const TrainedEnsemble t = train_ensemble(
      on, s, series, model, [&](const EnsembleProgress&) { stop = true; }, &stop);
  EXPECT_TRUE(t.interrupted);
}

}  // namespace
}  // namespace brim::forecast
