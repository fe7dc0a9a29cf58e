// SPDX-License-Identifier: Apache-2.0
// Ensembles: lanes from settings, learning a pattern, identical weights for any number of waves, and memory limits.
#include "forecast/ensemble.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "base/error.h"
#include "base/test_files.h"

namespace brim::forecast {
namespace {

// Series with period four and different levels. (MASE cannot be used as a loss here: points one season apart are equal,
// so its scale is zero.)
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

TEST(Ensemble, NeverTrainsInFp16) {
  plan::DeviceProfile card;  // without bf16
  card.name = "old";
  card.kind = device::DeviceKind::cuda;
  card.tflops_fp32 = 10;
  card.tflops_half = 50;
  card.bf16 = false;
  const plan::PrecisionChoice choice = lane_precision({}, card);
  EXPECT_EQ(choice.precision, ops::Precision::fp32);
  EXPECT_HAS(choice.reason, "loss scaling");
  card.bf16 = true;
  EXPECT_EQ(lane_precision({}, card).precision, ops::Precision::bf16);
}

TEST(Ensemble, TrainsInBf16OnCapableCpusByDefault) {
  plan::DeviceProfile cpu;
  cpu.name = "cpu";
  cpu.kind = device::DeviceKind::cpu;
  cpu.tflops_fp32 = cpu.tflops_half = 1;
  for (const auto& [isa, precision] :
       {std::pair(device::Isa::amx, ops::Precision::bf16), std::pair(device::Isa::neon_mm, ops::Precision::bf16),
        std::pair(device::Isa::avx2, ops::Precision::fp32), std::pair(device::Isa::neon, ops::Precision::fp32)}) {
    cpu.isa = isa;
    EXPECT_EQ(lane_precision({}, cpu).precision, precision) << isa_name(isa);
    EXPECT_EQ(lane_precision({ops::Precision::fp32}, cpu).precision, ops::Precision::fp32) << isa_name(isa);
  }
  ForecastSettings s = small_settings();
  EXPECT_EQ(EnsembleDevice(s).forecast_precision(), ops::Precision::fp32);
  s.precision = {ops::Precision::bf16};
  EXPECT_EQ(EnsembleDevice(s).forecast_precision(), ops::Precision::bf16);
}

TEST(Ensemble, RejectsInvalidSettings) {
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
            }).find("a season of 8"),
            std::string::npos);
  EXPECT_NE(message([](auto& s) { s.widths = {12, 12}; }).find("multiples of 8"), std::string::npos);
}

TEST(Ensemble, FurtherTrainingRejectsSettingsOfTheModel) {
  NbeatsModel model = ensemble_of(small_settings(), repeating(3, 60));
  const auto message = [&](const char* key, const char* value) {
    ForecastSettings s;
    s.from = "m";
    apply_setting(s, key, value);
    return error_of(ErrorCode::usage, [&] { take_shape(s, model); });
  };
  for (const auto& [key, value] :
       {std::pair("repeats", "1"), std::pair("shared_weights", "true"), std::pair("n_basis", "2"),
        std::pair("n_harmonics", "1"), std::pair("scaler_type", "last"), std::pair("held_out", "2")})
    EXPECT_HAS(message(key, value), fmt::format("`{}`: fixed by the model in m", key));
  ForecastSettings level;
  apply_setting(level, "level", "80");
  EXPECT_NO_THROW(take_shape(level, model));
  model.quantiles = {0.1F, 0.5F, 0.9F};
  EXPECT_HAS(message("level", "80"), "`level`: fixed by the model in m");
}

// The median over four lanes would hide the infinity of one.
TEST(Ensemble, ForecastsThatAreNotFiniteFail) {
  const SeriesStore series = repeating(3, 61);
  ForecastSettings s = small_settings();
  apply_setting(s, "max_steps", "2");
  EnsembleDevice on(s);
  NbeatsModel model = ensemble_of(s, series);
  train_ensemble(
      on, s, series, model, {}, [](const EnsembleProgress&) {}, nullptr);
  predict_ensemble(on, model, series, false, {}, nullptr);
  for (const float value : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    NbeatsModel damaged = model;
    for (float& weight : damaged.lanes[1].slab) weight = value;
    EXPECT_HAS(error_of(ErrorCode::bad_model, [&] { predict_ensemble(on, damaged, series, false, {}, nullptr); }),
               "the forecast of series 's0' is not finite");
  }
}

TEST(Ensemble, LearnsAPatternIdenticallyInAnyNumberOfWaves) {
  const SeriesStore series = repeating(5, 61);
  ForecastSettings s = small_settings();
  EnsembleDevice on(s);
  NbeatsModel model = ensemble_of(s, series);
  int64_t last_step = 0;
  const TrainedEnsemble whole = train_ensemble(
      on, s, series, model, {}, [&](const EnsembleProgress& p) { last_step = p.step; }, nullptr);
  EXPECT_EQ(last_step, 300);
  EXPECT_EQ(whole.plan.waves, 1);
  EXPECT_LE(whole.plan.peak_bytes, whole.plan.limit_bytes);
  ASSERT_EQ(model.lanes.size(), 4u);
  const std::vector<double> forecasts = predict_ensemble(on, model, series, false, {}, nullptr).values;
  for (size_t i = 0; i < forecasts.size(); ++i) {
    const double came = 100 + 10.0 * static_cast<double>(i / 4) + std::array{3, 6, 3, 0}[i % 4];
    EXPECT_NEAR(forecasts[i], came, 1) << i;
  }

  const TempDir dir;
  save_nbeats(dir.path() / "model", model);
  EXPECT_EQ(predict_ensemble(on, load_nbeats(dir.path() / "model"), series, false, {}, nullptr).values, forecasts);

  // Memory for two lanes at a time.
  WaveSpec spec;
  spec.shape = lane_shape(model, model.lanes[1]);
  spec.options.windows = s.windows_per_step();
  spec.threads = on.threads();
  const int64_t two = whole.plan.context_bytes +
                      total_bytes(wave_parts(spec, 2, series.size(), static_cast<int64_t>(series.values().size()),
                                             device::DeviceKind::cpu));
  s.memory_limit = plan::MemoryLimit::read(fmt::format("{}B", two));
  EnsembleDevice tight(s);
  NbeatsModel again = ensemble_of(s, series);
  const TrainedEnsemble parts = train_ensemble(tight, s, series, again, {}, {}, nullptr);
  EXPECT_EQ(parts.plan.waves, 2);
  for (size_t g = 0; g < model.lanes.size(); ++g) EXPECT_EQ(again.lanes[g].slab, model.lanes[g].slab) << g;

  s.memory_limit = plan::MemoryLimit::read(fmt::format("{}B", whole.plan.context_bytes + 4096));
  try {
    EnsembleDevice none(s);
    NbeatsModel unfit = ensemble_of(s, series);
    train_ensemble(none, s, series, unfit, {}, {}, nullptr);
    FAIL() << "it cannot fit";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::does_not_fit) << e.what();
    EXPECT_NE(std::string(e.what()).find("One lane requires"), std::string::npos) << e.what();
  }
}

// A table of zeros for the covariates of a shape.
CovariateTable zero_covariates(const NbeatsShape& shape, const SeriesStore& series) {
  CovariateTable table;
  table.shape = shape.covariates;
  table.horizon = shape.horizon;
  table.rows = covariate_rows(table.shape, shape.horizon, series.size(), static_cast<int64_t>(series.values().size()));
  table.future.resize(static_cast<size_t>(table.rows * table.shape.future));
  table.past.resize(static_cast<size_t>(table.rows * table.shape.past));
  table.fixed.resize(static_cast<size_t>(table.rows * table.shape.fixed));
  for (int64_t i = 0; i < series.size(); ++i)
    table.first_row.push_back(series.begin()[static_cast<size_t>(i)] + i * (table.shape.history + shape.horizon));
  return table;
}

// A wave allocates exactly the planned number of bytes, for any shape and under any limit.
TEST(Ensemble, AllocatesExactlyThePlannedMemory) {
  std::mt19937_64 random(11);
  const auto any = [&](int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random() % static_cast<uint64_t>(most - least + 1));
  };
  const SeriesStore series = repeating(3, 60);
  const auto device = device::open_device({device::DeviceChoice::Kind::cpu}, 1);
  memory::Ledger& ledger = memory::Ledger::of(*device);
  for (int run = 0; run < 200; ++run) {
    WaveSpec spec;
    spec.shape.horizon = any(1, 20);
    spec.shape.lookback = any(1, 40);
    spec.shape.layers = any(1, 4);
    for (int64_t i = any(1, 3); i > 0; --i)
      spec.shape.stacks.push_back({static_cast<StackKind>(any(0, 2)), any(1, 3), 8 * any(1, 8), any(0, 1) == 1});
    if (CovariateShape& c = spec.shape.covariates; any(0, 1) == 1) {
      c = {4 * any(0, 2), 4 * any(0, 2), 8 * any(0, 1), any(1, 12)};
      if (c.inputs(spec.shape.horizon) % 8 != 0) c.fixed += 4;
      if (c.future > 0)
        spec.shape.stacks.insert(spec.shape.stacks.begin(), {StackKind::exogenous, any(1, 2), 8 * any(1, 8), false});
    }
    const CovariateTable covariates = zero_covariates(spec.shape, series);
    spec.covariates = &covariates;
    spec.task = any(0, 3) == 0 ? NbeatsTask::predict : NbeatsTask::train;
    spec.options.windows = any(1, 40);
    spec.options.recompute = any(0, 1) == 1;
    spec.own_cutoffs = any(0, 1) == 1;
    if (spec.task == NbeatsTask::train) spec.validation_windows = any(0, 1) * any(1, 60);
    spec.precision = any(0, 1) == 0 ? ops::Precision::fp32 : ops::Precision::bf16;
    const int64_t wanted = any(1, 12), context = any(0, 1000);
    const int64_t one = context + total_bytes(wave_parts(spec, 1, series.size(), 180, device::DeviceKind::cpu));
    const EnsemblePlan plan =
        plan_lanes(spec, wanted, series.size(), 180, {"cpu", device::DeviceKind::cpu, one + any(0, 8 * one), context});
    ASSERT_LE(plan.peak_bytes, plan.limit_bytes);
    ASSERT_GE(plan.lanes_per_wave * plan.waves, wanted);
    spec.options.recompute = plan.recompute;
    spec.lanes.resize(static_cast<size_t>(plan.lanes_per_wave));
    for (ops::LaneSpec& lane : spec.lanes) {
      lane.lookback = static_cast<int32_t>(any(1, spec.shape.lookback));
      lane.history = 20;
    }
    const std::vector<LaneCutoffs> cutoffs(spec.own_cutoffs ? spec.lanes.size() : 0, whole_series(series.begin()));
    auto planned = std::make_unique<memory::PlannedMemory>(ledger.reserve("wave", plan.parts));
    Wave wave(*device, spec, series, cutoffs, ops::Sampling::series, planned.get());
    planned.reset();  // releases what was planned but not allocated
    ASSERT_EQ(ledger.reserved_bytes(), plan.peak_bytes - context) << run;
    if (spec.task == NbeatsTask::train) wave.step();
    wave.stream().synchronize();
  }
  EXPECT_EQ(ledger.reserved_bytes(), 0);
}

TEST(Ensemble, MeasuresGpuContextOnlyIfThePlanDependsOnIt) {
  EXPECT_FALSE(needs_measured_context(false, 50, 100));
  EXPECT_TRUE(needs_measured_context(false, 51, 100));
  EXPECT_TRUE(needs_measured_context(true, 1, 100));
}

// Large ensembles are only planned: limits from 1 to 24 GiB on a GPU.
TEST(Ensemble, PlansStayUnderTheLimit) {
  WaveSpec spec;
  spec.shape.horizon = 13;
  spec.shape.lookback = 91;
  spec.shape.stacks = {{StackKind::generic, 30, 512, false}};
  spec.options.windows = 1024;
  spec.precision = ops::Precision::bf16;
  int64_t most = 0;
  for (const int64_t gib : {1, 2, 4, 8, 12, 16, 24}) {
    const EnsemblePlan plan =
        plan_lanes(spec, 36, 359, 366'912, {"card", device::DeviceKind::cuda, gib << 30, 300 << 20});
    EXPECT_LE(plan.peak_bytes, gib << 30);
    EXPECT_GE(plan.lanes_per_wave, most);  // more memory never needs more waves
    most = plan.lanes_per_wave;
  }
  EXPECT_EQ(most, 36);
}

TEST(Ensemble, StopsOnRequest) {
  const SeriesStore series = repeating(3, 60);
  ForecastSettings s = small_settings();
  s.max_steps = 1'000'000;
  EnsembleDevice on(s);
  NbeatsModel model = ensemble_of(s, series);
  std::atomic<bool> stop{false};
  const TrainedEnsemble t = train_ensemble(
      on, s, series, model, {}, [&](const EnsembleProgress&) { stop = true; }, &stop);
  EXPECT_TRUE(t.interrupted);
}

// Interrupts training repeatedly, with early stopping and two waves.
TEST(Ensemble, ResumesToTheSameWeights) {
  const SeriesStore series = repeating(3, 60);
  ForecastSettings s = small_settings();
  s.max_steps = 150;
  s.save_steps = 16;
  s.val_check_steps = 10;
  s.early_stop_patience = 3;
  EnsembleDevice on(s);
  NbeatsModel whole = ensemble_of(s, series);
  const TrainedEnsemble t = train_ensemble(on, s, series, whole, {}, {}, nullptr);
  for (const int64_t step : t.best_steps) EXPECT_TRUE(step > 0 && step % 10 == 0) << step;
  s.memory_limit = plan::MemoryLimit::read(
      fmt::format("{}B", t.plan.context_bytes + (t.plan.peak_bytes - t.plan.context_bytes) * 2 / 3));
  EnsembleDevice tight(s);
  const TempDir dir;
  std::atomic<bool> stop{true};
  for (int i = 0; i < 3; ++i) {  // one step only, then resume
    NbeatsModel model = ensemble_of(s, series);
    EXPECT_TRUE(train_ensemble(tight, s, series, model, dir.path() / "state", {}, &stop).interrupted);
  }
  NbeatsModel model = ensemble_of(s, series);
  stop = false;
  const auto stop_in_second = [&](const EnsembleProgress& p) { stop = p.wave == 1; };
  EXPECT_TRUE(train_ensemble(tight, s, series, model, dir.path() / "state", stop_in_second, &stop).interrupted);
  model = ensemble_of(s, series);
  const TrainedEnsemble last = train_ensemble(tight, s, series, model, dir.path() / "state", {}, nullptr);
  EXPECT_EQ(last.resumed_lanes, 2);
  EXPECT_EQ(last.best_steps, t.best_steps);
  EXPECT_EQ(last.curves, t.curves);
  for (size_t g = 0; g < whole.lanes.size(); ++g) EXPECT_EQ(model.lanes[g].slab, whole.lanes[g].slab) << g;
  // A different number of lanes fits on resume: finished lanes are kept, and so are checkpointed lanes if they fit
  // together.
  for (const bool grows : {true, false}) {
    const TempDir other;
    stop = false;
    model = ensemble_of(s, series);
    const auto stop_later = [&](const EnsembleProgress& p) { stop = p.wave == (grows ? 1 : 0); };
    EnsembleDevice &before = grows ? tight : on, &after = grows ? on : tight;
    EXPECT_TRUE(train_ensemble(before, s, series, model, other.path() / "state", stop_later, &stop).interrupted);
    model = ensemble_of(s, series);
    const TrainedEnsemble done = train_ensemble(after, s, series, model, other.path() / "state", {}, nullptr);
    EXPECT_EQ(done.resumed_lanes, grows ? 2 : 0);
    EXPECT_EQ(done.best_steps, t.best_steps);
    for (size_t g = 0; g < whole.lanes.size(); ++g) EXPECT_EQ(model.lanes[g].slab, whole.lanes[g].slab) << g;
  }
  s.max_steps = 151;
  model = ensemble_of(s, series);
  EXPECT_HAS(error_of(ErrorCode::cannot_write,
                      [&] { train_ensemble(tight, s, series, model, dir.path() / "state", {}, nullptr); }),
             "with `max_steps=150`, but this run has `max_steps=151`");
}

// Some targets in every step are so close to zero that a relative error is infinite, which affects only mape.
TEST(Ensemble, LeavesOutALaneThatFailsInItsOwnWave) {
  rows::SeriesTable table;
  table.begin = {0};
  table.ids = {"s"};
  for (size_t t = 0; t < 60; ++t) table.values.push_back(std::array{2e-38F, 1000.F, 2000.F, 1000.F}[t % 4]);
  table.begin.push_back(static_cast<int64_t>(table.values.size()));
  table.first = {1};
  table.numbered = true;
  const SeriesStore series(std::move(table));
  ForecastSettings s = small_settings();
  s.losses = {ops::ForecastLoss::mape, ops::ForecastLoss::mae};
  s.lookbacks = {2};
  s.max_steps = 200;
  EnsembleDevice on(s);
  NbeatsModel whole = ensemble_of(s, series);
  const TrainedEnsemble t = train_ensemble(on, s, series, whole, {}, {}, nullptr);
  ASSERT_EQ(whole.lanes.size(), 1u);
  EXPECT_EQ(whole.lanes[0].spec.loss, ops::ForecastLoss::mae);
  s.memory_limit = plan::MemoryLimit::read(
      fmt::format("{}B", t.plan.context_bytes + (t.plan.peak_bytes - t.plan.context_bytes) * 3 / 4));
  EnsembleDevice tight(s);
  const TempDir dir;
  for (const int64_t resumed : {0, 1}) {  // the last wave is kept with the model, which is saved elsewhere
    NbeatsModel model = ensemble_of(s, series);
    const auto progress = [](const EnsembleProgress& p) {
      EXPECT_EQ(p.wave, 1);
    };  // the first wave has no loss to report
    const TrainedEnsemble parts = train_ensemble(tight, s, series, model, dir.path() / "state", progress, nullptr);
    EXPECT_EQ(parts.plan.waves, 2);
    EXPECT_EQ(parts.resumed_lanes, resumed);
    EXPECT_TRUE(std::isnan(parts.last_losses[0]));
    ASSERT_EQ(model.lanes.size(), 1u);
    EXPECT_EQ(model.lanes[0].slab, whole.lanes[0].slab);
  }
  s.losses = {ops::ForecastLoss::mape};
  const TempDir none;
  for (int i = 0; i < 2; ++i) {  // the second run resumes from the first
    NbeatsModel model = ensemble_of(s, series);
    EXPECT_HAS(error_of(ErrorCode::diverged,
                        [&] { train_ensemble(tight, s, series, model, none.path() / "state", {}, nullptr); }),
               "all lanes diverged");
  }
}

TEST(Ensemble, SortsQuantilesAndComponentsAddUp) {
  rows::SeriesTable table;
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < 8; ++i) {
    table.ids.push_back(fmt::format("s{}", i));
    for (int t = 0; t < 80; ++t) table.values.push_back(100 + normal(random));
    table.begin.push_back(static_cast<int64_t>(table.values.size()));
    table.first.push_back(1);
  }
  table.numbered = true;
  const SeriesStore series(std::move(table));
  ForecastSettings s = small_settings();
  s.losses = {ops::ForecastLoss::quantile};
  s.level = {80};
  s.stack_types = {StackKind::trend, StackKind::seasonality};
  s.n_blocks = {1, 1};
  s.lookbacks = {3};
  EnsembleDevice on(s);
  NbeatsModel model = ensemble_of(s, series);
  ASSERT_EQ(model.quantiles.size(), 3u);
  train_ensemble(
      on, s, series, model, {}, [](const EnsembleProgress&) {}, nullptr);
  const EnsembleForecasts f = predict_ensemble(on, model, series, true, {}, nullptr);
  EXPECT_EQ(f.stacks, (std::vector<std::string>{"level", "trend", "seasonality"}));
  double width = 0;
  for (int64_t i = 0; i < series.size(); ++i)
    for (size_t h = 0; h < 4; ++h) {
      EXPECT_LE(f.of(i, 0)[h], f.point(i)[h]);
      EXPECT_LE(f.point(i)[h], f.of(i, 2)[h]);
      width += (f.of(i, 2)[h] - f.of(i, 0)[h]) / 32;
      double sum = 0;
      for (size_t c = 0; c < 3; ++c) sum += f.components[(static_cast<size_t>(i) * 3 + c) * 4 + h];
      EXPECT_NEAR(sum, f.point(i)[h], 1);  // single lane; crossed quantiles were sorted
    }
  EXPECT_NEAR(width, 2 * 1.2816, 1);  // middle 80 % of a normal distribution
}

}  // namespace
}  // namespace brim::forecast
