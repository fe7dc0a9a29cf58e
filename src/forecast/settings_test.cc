// SPDX-License-Identifier: Apache-2.0
#include "forecast/settings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/test_files.h"
#include "train/settings.h"

namespace brim::forecast {
namespace {

using ops::ForecastLoss;
using ops::WindowScaler;

ForecastSettings with(const std::vector<std::pair<std::string, std::string>>& keys) {
  ForecastSettings s;
  for (const auto& [key, value] : keys) apply_setting(s, key, value);
  return s;
}

TEST(ForecastSettings, EveryKeyIsListedOnceWithHelp) {
  std::set<std::string> seen;
  for (const SettingInfo& key : forecast_settings().infos()) {
    EXPECT_TRUE(seen.insert(key.name).second) << key.name;
    EXPECT_FALSE(key.help.empty()) << key.name;
    ForecastSettings s;
    if (key.ignored) {
      EXPECT_HAS(apply_setting(s, key.name, "1"), key.help);
    }
  }
}

TEST(ForecastSettings, HelpHasNoDefaultForTheHorizonAndAllSeasons) {
  const auto infos = forecast_settings().infos();
  EXPECT_EQ(train::find_info(infos, "horizon")->default_value, "");
  const auto kept = forecast_settings().kept(with({{"horizon", "6"}}));
  EXPECT_TRUE(std::any_of(kept.begin(), kept.end(),
                          [](const KeptSetting& k) { return k.name == "horizon" && k.value == "6"; }));
  EXPECT_HAS(train::find_info(infos, "season")->help, "4 quarterly");
  EXPECT_EQ(rows::season_of(*rows::parse_frequency("Q")), 4);
}

TEST(ForecastSettings, SharesRowsWithTraining) {
  for (const auto& row : train::run_rows<ForecastSettings>()) {
    ASSERT_NE(forecast_settings().find(row.name), nullptr) << row.name;
    ASSERT_NE(train::train_settings().find(row.name), nullptr) << row.name;
  }
  ForecastSettings s;
  EXPECT_EQ(s.learning_rate, 1e-3);
  EXPECT_EQ(forecast_settings().find("weight_decay")->value.get(s), "0");
}

TEST(ForecastSettings, AppliesTheMemoryManagerBlock) {
  ForecastSettings s;
  const auto notes = apply_yaml(s, BRIM_SOURCE_DIR "/tests/data/train/nbeats_12gb.yaml");
  EXPECT_EQ(s.memory_limit.bytes, 12'000'000'000);
  EXPECT_EQ(s.limit_origin.key, "max_memory_gb");
  EXPECT_EQ(s.precision, (plan::PrecisionRequest{std::nullopt, true}));
  EXPECT_EQ(s.target_utilization, 85);
  ASSERT_EQ(notes.size(), 2u);  // dynamic_batch_sizing, memory_monitoring
  apply_preset(s, {});
  EXPECT_EQ(s.windows_per_step(), 2 * 256);
}

TEST(ForecastSettings, AcceptsNeuralForecastNames) {
  TempDir dir;
  put_file(dir / "a.yaml",
           "database:\n  url: x\nforecast:\n  h: 12\n  input_size: 24\n  stack_types: [identity, trend, seasonality]\n"
           "  n_blocks: [1, 1, 1]\n  mlp_units: [[512, 512], [512, 512], [512, 512]]\n  n_harmonics: 2\n"
           "  n_polynomials: 3\n  windows_batch_size: 1024\n  batch_size: 32\n  max_steps: 700\n  num_lr_decays: -0\n"
           "  scaler_type: identity\n  random_seed: 7\n  early_stop_patience_steps: -1\n  val_check_steps: 50\n"
           "  start_padding_enabled: true\n  loss: mae\n  num_workers_loader: 2\n  step_size: 3\nweb:\n  port: 80\n");
  ForecastSettings s;
  const auto notes = apply_yaml(s, dir / "a.yaml");
  check_settings(s);
  EXPECT_EQ(s.horizon, 12);
  EXPECT_EQ(s.input_size, 24);
  EXPECT_EQ(s.stack_types, (std::vector{StackKind::generic, StackKind::trend, StackKind::seasonality}));
  EXPECT_EQ(s.widths, (std::vector<int64_t>{512, 512}));
  EXPECT_EQ(s.n_basis, 3);
  EXPECT_EQ(s.step, 3);
  EXPECT_EQ(s.scaler, WindowScaler::none);
  ASSERT_EQ(notes.size(), 2u);
  EXPECT_HAS(notes[0], "num_workers_loader is ignored");
  EXPECT_HAS(notes[1], "ignored keys of other programs: database, web");
  const auto preset = apply_preset(s, *rows::parse_frequency("M"));
  EXPECT_HAS(preset.at(0), "`batch_size` is ignored");
  EXPECT_EQ(s.windows_per_step(), 1024);
  EXPECT_EQ(s.max_steps, 700);
  EXPECT_TRUE(s.lookbacks.empty());  // input_size takes precedence
  EXPECT_EQ(s.history_size, 1.5);
}

TEST(ForecastSettings, IgnoresKeysOfOtherProgramsNextToItsBlocks) {
  TempDir dir;
  put_file(dir / "a.yaml", "app_name: x\ndebug: [1, 2]\ngpu_optimization:\n  max_memory_gb: 12\nlog_dir: /tmp\n");
  ForecastSettings s;
  const auto notes = apply_yaml(s, dir / "a.yaml");
  EXPECT_EQ(s.memory_limit.bytes, 12'000'000'000);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_HAS(notes[0], "ignored keys of other programs: app_name, debug, log_dir");
  const auto error_in = [&](const std::string& text) {
    put_file(dir / "a.yaml", text);
    return error_of(ErrorCode::usage, [&] { apply_yaml(s, dir / "a.yaml"); });
  };
  EXPECT_HAS(error_in("horizn: 3\nforecast:\n  max_steps: 5\n"), "a.yaml:1: unknown key horizn; did you mean horizon?");
  EXPECT_HAS(error_in("memory_fraction: 0.98\nforecast:\n  max_steps: 5\n"), "did you mean memory_limit: 98%?");
  EXPECT_HAS(error_in("app_name: x\n"), "unknown key app_name");  // no block: the file is Brim's
}

TEST(ForecastSettings, RejectsUnknownKeysInOwnBlocks) {
  TempDir dir;
  const auto error_in = [&](const std::string& text) {
    put_file(dir / "a.yaml", text);
    ForecastSettings s;
    return error_of(ErrorCode::usage, [&] { apply_yaml(s, dir / "a.yaml"); });
  };
  EXPECT_HAS(error_in("forecast:\n  horizn: 3\n"), "a.yaml:2: unknown key horizn; did you mean horizon?");
  EXPECT_HAS(error_in("gpu_optimization:\n  max_memory_bg: 3\n"), "did you mean max_memory_gb?");
  EXPECT_HAS(error_in("gpu_optimization:\n  dynamic_batch_sizing: maybe\n"),
             "a.yaml:2: dynamic_batch_sizing: maybe: must be true or false");
  EXPECT_HAS(error_in("gpu_optimisation:\n  max_memory_gb: 3\n"),
             "unknown block gpu_optimisation; did you mean gpu_opt");
  EXPECT_HAS(error_in("forecast:\n  web:\n    port: 1\n"), "unknown block web");
  EXPECT_HAS(error_in("horizn: 3\n"), "unknown key horizn");
  EXPECT_HAS(error_in("horizon: 3\nhorizon: 4\n"), "a.yaml:2: duplicate key horizon");
  EXPECT_HAS(error_in("horizon: [3, 4]\n"), "takes one value");
  EXPECT_HAS(error_in("horizon: 3\nlevel: [80, 101]\n"),
             "a.yaml:2: level: 80,101: must be percentages between 0 and 100");
}

TEST(ForecastSettings, ListsCanBeReplaced) {
  for (const SettingInfo& info : forecast_settings().infos()) {
    if (!info.is_list || info.ignored) continue;
    ForecastSettings s = with({{info.name, "80"}});
    clear_list(s, info.name);
    if (const auto& get = forecast_settings().find(info.name)->value.get) {
      EXPECT_EQ(get(s), "") << info.name;
    }
    EXPECT_TRUE(s.data.empty() && s.actual.empty() && s.plot_series.empty()) << info.name;
  }
}

TEST(ForecastSettings, PresetsSetStepsAndHistoryByFrequency) {
  const auto preset = [](const char* name, const char* frequency) {
    ForecastSettings s = with({{"preset", name}, {"horizon", "13"}});
    apply_preset(s, *rows::parse_frequency(frequency));
    return s;
  };
  const ForecastSettings paper = preset("paper", "D"), monthly = preset("paper", "M");
  EXPECT_EQ(paper.lookbacks.size() * paper.losses.size() * static_cast<size_t>(paper.repeats), 18u);
  EXPECT_EQ(paper.n_blocks, std::vector<int64_t>{30});
  EXPECT_EQ(paper.max_steps, 5000);
  EXPECT_EQ(paper.history_size, 10);
  EXPECT_EQ(monthly.max_steps, 15000);
  EXPECT_EQ(monthly.history_size, 1.5);
  const ForecastSettings fast = preset("fast", "H");
  EXPECT_EQ(fast.lookbacks.size() * fast.losses.size(), 8u);
  EXPECT_EQ(fast.windows_per_step(), 256);
  EXPECT_FALSE(*fast.shared_weights);
  const ForecastSettings parts = preset("interpretable", "Q");
  EXPECT_TRUE(*parts.shared_weights);
  EXPECT_EQ(parts.n_blocks, (std::vector<int64_t>{3, 3}));
  // Explicit values are kept.
  ForecastSettings own = with({{"lookbacks", "2..4"},
                               {"losses", "mae,smape"},
                               {"epochs", "3"},
                               {"n_blocks", "2"},
                               {"stack_types", "trend,seasonality"}});
  apply_preset(own, {});
  EXPECT_EQ(own.lookbacks, (std::vector<int64_t>{2, 3, 4}));
  EXPECT_EQ(own.losses, (std::vector{ForecastLoss::mae, ForecastLoss::smape}));
  EXPECT_EQ(own.max_steps, 0);
  EXPECT_EQ(own.n_blocks, (std::vector<int64_t>{2, 2}));
}

TEST(ForecastSettings, ErrorsNameTheKeyAndExpectedValue) {
  for (const auto& [key, value] : std::vector<std::pair<std::string, std::string>>{{"horizon", "0"},
                                                                                   {"horizon", "10001"},
                                                                                   {"season", "0"},
                                                                                   {"freq", "hourly"},
                                                                                   {"layout", "tall"},
                                                                                   {"gaps", "zero"},
                                                                                   {"level", "100"},
                                                                                   {"level", "0"},
                                                                                   {"level", "80,-5"},
                                                                                   {"level", "nan"},
                                                                                   {"level", "high"},
                                                                                   {"lookbacks", "7..2"},
                                                                                   {"lookbacks", "0"},
                                                                                   {"lookbacks", ""},
                                                                                   {"losses", "rmse"},
                                                                                   {"stack_types", "wavelet"},
                                                                                   {"mlp_units", "1,2"},
                                                                                   {"mlp_units", "8,8;9,9"},
                                                                                   {"shrink", "1.5"},
                                                                                   {"target_utilization", "101"},
                                                                                   {"warm", "hot"},
                                                                                   {"preset", "slow"},
                                                                                   {"repeats", "0"},
                                                                                   {"epochs", "nan"},
                                                                                   {"delimiter", "x"},
                                                                                   {"max_memory_gb", "none"},
                                                                                   {"early_stop_patience_steps", "-2"},
                                                                                   {"start_padding_enabled", "false"},
                                                                                   {"learning_rate", "0"}})
    EXPECT_HAS(error_of(ErrorCode::usage, [&, k = key, v = value] { with({{k, v}}); }), key);
  for (const auto& keys : std::vector<std::vector<std::pair<std::string, std::string>>>{
           {{"input_size", "5"}, {"lookbacks", "2"}},
           {{"max_steps", "5"}, {"epochs", "2"}},
           {{"stack_types", "trend,seasonality"}, {"n_blocks", "1,2,3"}},
           {{"precision", "int8"}},
           {{"precision", "fp16"}},
           {{"losses", "quantile,mae"}},
           {{"warm_steps", "5"}},
           {{"warm", "chain"}, {"anchor_every", "5"}}})
    EXPECT_HAS(error_of(ErrorCode::usage, [&] { check_settings(with(keys)); }), keys[0].first);
}

TEST(ForecastSettings, RunLinesIncludeLevelsForQuantileModels) {
  const auto lines = [](const std::vector<std::pair<std::string, std::string>>& keys) {
    ForecastSettings s = with(keys);
    apply_preset(s, {});
    return run_lines(s, ops::Precision::fp32);
  };
  EXPECT_EQ(lines({{"level", "50"}}), lines({}));
  EXPECT_NE(lines({{"losses", "quantile"}, {"level", "50"}}), lines({{"losses", "quantile"}}));
  EXPECT_EQ(lines({{"losses", "quantile"}, {"level", "80,95"}}), lines({{"losses", "quantile"}}));
}

TEST(ForecastSettings, SeasonDefaultsToTheFrequency) {
  const auto hourly = *rows::parse_frequency("H");
  EXPECT_EQ(season_for(with({}), hourly), 24);
  EXPECT_EQ(season_for(with({{"season", "7"}}), hourly), 7);
  EXPECT_EQ(season_for(with({{"freq", "M"}}), {}), 12);  // for numbered points
  EXPECT_EQ(season_for(with({}), {}), 1);
}

}  // namespace
}  // namespace brim::forecast
