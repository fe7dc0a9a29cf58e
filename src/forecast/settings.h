// SPDX-License-Identifier: Apache-2.0
// Settings of `brim forecast`, defined once for flags, YAML keys and BRIM_ variables, with names from NeuralForecast
// and the published N-BEATS experiments. Memory, precision and optimizer rows are shared with training
// (train/run_settings.h), so a `gpu_optimization:` block means the same for both.
#pragma once
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/settings.h"
#include "forecast/baselines.h"
#include "forecast/nbeats.h"
#include "ops/lane.h"
#include "ops/window_gather.h"
#include "rows/series_reader.h"
#include "train/run_settings.h"

namespace brim::forecast {

enum class Preset : uint8_t { paper, fast, interpretable };
enum class WarmStart : uint8_t { none, anchor, chain };
const char* warm_start_name(WarmStart warm);

struct ForecastSettings : train::RunSettings {
  ForecastSettings() {
    learning_rate = 1e-3;
    weight_decay = 0;
  }

  std::vector<std::string> data, actual;
  std::string model, output, forecast_file, alias, plot;
  std::vector<std::string> plot_series;  // ids; empty: the first ones
  rows::SeriesLayout layout = rows::SeriesLayout::automatic;
  std::string id_column, time_column, target_column;
  std::optional<rows::Frequency> freq;  // default: detected
  rows::GapRule gaps = rows::GapRule::mask;
  char delimiter = 0;
  int64_t horizon = 0, season = 0;  // 0: not given; season defaults to the frequency's
  std::vector<std::string> future_columns, past_columns, static_columns, categorical;
  bool calendar = false;
  std::string from;                                                    // model directory to continue from
  std::vector<double> level;                                           // interval levels in percent
  std::vector<Baseline> baselines = {Baseline::theta, Baseline::ets};  // fitted baselines of `eval`
  int64_t held_out = 2;                                                // horizons

  // Filled in by the preset if not given.
  Preset preset = Preset::fast;
  std::vector<StackKind> stack_types;
  std::vector<int64_t> n_blocks;  // per stack
  std::vector<int64_t> widths;    // layer widths of a block
  std::optional<bool> shared_weights;
  std::vector<int64_t> lookbacks;  // in multiples of the horizon
  std::vector<ops::ForecastLoss> losses;
  int64_t batch_size = 0, windows_batch_size = 0;  // 0: from the preset
  int64_t max_steps = 0;
  double epochs = 0, history_size = 0;  // history in multiples of the horizon

  int64_t input_size = 0;  // in points; 0: use lookbacks
  int64_t n_harmonics = 1, n_basis = 2, repeats = 1, num_lr_decays = 3, val_check_steps = 100, early_stop_patience = 0;
  ops::WindowScaler scaler = ops::WindowScaler::last;
  ops::Sampling sampling = ops::Sampling::series;
  bool mean_of_valid = false, start_padding = true;
  int64_t seed = 1;
  double target_utilization = 0;  // percent; 0: not set

  int64_t folds = 0, step = 1, refit = 1, window = 0, gap = 0, warm_steps = 0, anchor_every = 0;
  int64_t save_steps = 0;  // 0: by time
  WarmStart warm = WarmStart::none;
  std::string shrink = "auto";  // auto, none, or a factor
  bool keep_models = false, extend = false, components = false;

  std::set<std::string, std::less<>> given;  // names of the settings that were applied

  // Windows per optimizer step.
  int64_t windows_per_step() const {
    return (windows_batch_size > 0 ? windows_batch_size : batch_size) * gradient_accumulation_steps;
  }
  std::vector<rows::CovariateColumn> covariate_columns() const;
  rows::SeriesReaderOptions reader_options() const;
};

const SettingsTable<ForecastSettings>& forecast_settings();

// Sets one key like SettingsTable::apply, and records that it is given and the origin of a memory limit.
std::string apply_setting(ForecastSettings& settings, std::string_view key, std::string_view value,
                          const std::string& where = "");

// Empties a setting whose values add up, so that those of flags replace those of a file.
void clear_list(ForecastSettings& settings, std::string_view key);

// Reads a YAML file: keys at the top level or in the blocks forecast, forecasting, nbeats and gpu_optimization. Other
// top-level blocks belong to other programs and are listed in a note.
std::vector<std::string> apply_yaml(ForecastSettings& settings, const std::filesystem::path& path);

// Months and longer.
bool is_slow(const rows::Frequency& frequency);

// Fills in missing settings by preset and frequency: history and steps matter as much as width, and differ by
// frequency. Returns notes for the user.
std::vector<std::string> apply_preset(ForecastSettings& settings, const rows::Frequency& frequency);

// The given season, or that of the frequency: `freq` if set, else the detected one.
int64_t season_for(const ForecastSettings& settings, const rows::Frequency& recognised);

// Interval levels in percent: as given, or 80 and 95.
std::vector<double> interval_levels(const ForecastSettings& settings);

// Settings that must match for a run to resume, one line per setting, except those in `but`. `level` is included only
// for quantile models, because otherwise it does not affect training.
std::vector<std::string> run_lines(const ForecastSettings& settings, ops::Precision precision,
                                   std::initializer_list<std::string_view> but = {});

// Throws usage for conflicting settings, independent of the data.
void check_settings(const ForecastSettings& settings);

}  // namespace brim::forecast
