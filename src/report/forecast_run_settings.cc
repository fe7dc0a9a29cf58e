// SPDX-License-Identifier: Apache-2.0
// Settings of forecasting runs by command, for flags and for callers of the library.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <span>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/units.h"
#include "forecast/trial.h"
#include "report/forecast_run.h"

namespace brim::report {

using forecast::ForecastSettings;

namespace {

// clang-format off
constexpr std::string_view kTrainNames[] = {
    "data", "horizon", "output", "preset", "lookbacks", "losses", "repeats", "max_steps", "epochs", "batch_size",
    "learning_rate", "num_lr_decays", "history_size", "input_size", "stack_types", "n_blocks", "mlp_units",
    "shared_weights", "n_harmonics", "n_basis", "scaler_type", "sampling", "loss_mean", "season", "random_seed",
    "level", "val_check_steps", "early_stop_patience_steps", "save_steps", "model", "held_out", "calendar", "from"};
constexpr std::string_view kPredictNames[] = {
    "data", "model", "horizon", "output", "alias", "season", "level", "held_out", "components", "plot", "plot_series"};
constexpr std::string_view kRollNames[] = {
    "data", "horizon", "output", "folds", "step", "refit", "window", "gap", "warm", "warm_steps", "anchor_every",
    "shrink", "level", "baselines", "keep_models", "calendar", "val_check_steps", "early_stop_patience_steps", "extend",
    "save_steps", "alias", "preset", "lookbacks", "losses", "repeats", "max_steps", "epochs", "batch_size",
    "learning_rate", "input_size", "stack_types", "n_blocks", "num_lr_decays", "history_size", "mlp_units",
    "shared_weights", "n_harmonics", "n_basis", "scaler_type", "sampling", "loss_mean", "season", "random_seed",
    "target_utilization"};
constexpr std::string_view kEvalNames[] = {
    "data", "actual", "model", "forecast", "alias", "season", "level", "held_out", "baselines"};
constexpr std::string_view kCommonNames[] = {
    "layout", "id_column", "time_column", "target_column", "freq", "gaps", "delimiter", "device", "precision",
    "memory_limit", "leave_free", "threads", "future_columns", "past_columns", "static_columns", "categorical"};
// clang-format on

std::span<const std::string_view> own_setting_names(ForecastCommand command) {
  switch (command) {
    case ForecastCommand::train:
      return kTrainNames;
    case ForecastCommand::predict:
      return kPredictNames;
    case ForecastCommand::roll:
      return kRollNames;
    case ForecastCommand::eval:
      return kEvalNames;
  }
  return {};
}

}  // namespace

std::vector<std::string_view> setting_names(ForecastCommand command) {
  const std::span<const std::string_view> own = own_setting_names(command);
  std::vector<std::string_view> names(own.begin(), own.end());
  names.insert(names.end(), std::begin(kCommonNames), std::end(kCommonNames));
  return names;
}

namespace {

// Names of other commands are refused, unknown ones by the table.
void check_name(ForecastCommand command, const std::string& key) {
  const auto* row = forecast::forecast_settings().find(key);
  const std::vector<std::string_view> names = setting_names(command);
  if (row == nullptr || row->ignored() || std::find(names.begin(), names.end(), row->name) != names.end()) return;
  fail(ErrorCode::usage, Remedy{"omit it"}, "`{}`: not a setting of this command", key);
}

}  // namespace

ForecastSettings read_forecast_settings(ForecastCommand command, const std::string& config,
                                        const ForecastValues& values, ForecastObserver& observer) {
  ForecastSettings settings;
  std::vector<std::string> notes;
  if (!config.empty()) notes = apply_yaml(settings, config);
  for (const auto& [key, given] : values) forecast::clear_list(settings, key);
  for (const auto& [key, given] : values)
    for (const std::string& value : given) {
      check_name(command, key);
      if (value.empty()) fail(ErrorCode::usage, "`{}`: missing value", key);
      if (std::string note = apply_setting(settings, key, value); !note.empty()) notes.push_back(note);
    }
  for (const std::string& note : notes) observer.note(note);
  check_settings(settings);
  if (settings.data.empty()) fail(ErrorCode::usage, Remedy{"set `data=FILE`"}, "no data");
  return settings;
}

bool choose_settings(ForecastSettings& s, const forecast::SeriesStore& store, std::vector<int64_t> known,
                     ForecastObserver& observer) {
  if (known.empty())
    for (int64_t i = 0; i < store.size(); ++i) known.push_back(static_cast<int64_t>(store.series(i).size()));
  if (forecast::fit_lookbacks(s, store.frequency(), std::move(known)))
    observer.note(fmt::format("lookbacks: {} horizons for short series (set others with `lookbacks`)",
                              fmt::join(s.lookbacks, ", ")));
  const bool fits_history = forecast::fit_history(s, store);
  if (fits_history)
    observer.note(fmt::format("history: {:g} horizons for {} series (set another with `history_size`)", s.history_size,
                              format_count(store.size())));
  for (const std::string& note : apply_preset(s, store.frequency())) observer.note(note);
  return fits_history;
}

}  // namespace brim::report
