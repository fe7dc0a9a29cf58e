// SPDX-License-Identifier: Apache-2.0
#include "cli/plan_forecast.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "base/units.h"
#include "cli/forecast_verbs.h"
#include "cli/verb.h"
#include "forecast/roll.h"
#include "rows/series_reader.h"

namespace brim::cli {
namespace {

// Placeholder if no data is given: enough to create lanes, without any points.
forecast::SeriesStore no_series() {
  rows::SeriesTable table;
  table.numbered = true;
  return forecast::SeriesStore(std::move(table));
}

}  // namespace

void add_forecast_plan_rows(CLI::App& app, FlagValues& values) {
  add_rows(
      app, values,
      {"data",          "horizon",   "preset",         "lookbacks",    "losses",         "repeats",     "input_size",
       "n_blocks",      "mlp_units", "stack_types",    "max_steps",    "folds",          "refit",       "warm",
       "target_column", "layout",    "future_columns", "past_columns", "static_columns", "categorical", "calendar"});
}

int run_plan_forecast(const std::string& config, const FlagValues& values, const ForecastPlanTarget& target,
                      bool json) {
  forecast::ForecastSettings s;
  if (!config.empty())
    for (const std::string& note : apply_yaml(s, config)) log_info("{}", note);
  for (const auto& [key, given] : values) forecast::clear_list(s, key);
  for (const auto& [key, given] : values)
    for (const std::string& value : given) apply_setting(s, key, value);
  check_settings(s);
  if (s.horizon == 0) fail(ErrorCode::usage, "brim plan --task forecast: --horizon is required");
  ForecastTerminal terminal(false, "");
  const forecast::SeriesStore store =
      s.data.empty() ? no_series()
                     : report::read_store(s.data, s.reader_options(), "data", {terminal, stop_requested()});
  apply_preset(s, store.frequency());
  const forecast::NbeatsModel members = ensemble_of(s, store);
  const plan::PrecisionChoice precision = forecast::lane_precision(s.precision, target.profile);
  forecast::WaveSpec spec = training_spec(precision.precision, target.profile.threads, s, members);
  int64_t trainings = 1, steps = steps_of(s, store);
  if (s.folds > 0) {
    spec.own_cutoffs = true;
    trainings = (s.folds + s.refit - 1) / s.refit + 1;
    if (!s.data.empty()) {
      const forecast::RollPlan roll = plan_roll(s, store, members);
      trainings = static_cast<int64_t>(roll.trainings.size());
      steps = roll.steps;
    }
  }
  const auto M = static_cast<int64_t>(members.lanes.size());
  const int64_t lanes = trainings * M;
  const int64_t limit = s.memory_limit.on(target.memory, target.profile.name, s.limit_origin);
  const forecast::EnsemblePlan plan =
      plan_lanes(spec, lanes, store.size(), static_cast<int64_t>(store.values().size()),
                 {target.profile.name, target.profile.kind, limit, target.profile.context_bytes});
  spec.options.recompute = plan.recompute;
  // Time of the GEMMs alone at the throughput of large ones: a lower bound for the step.
  const double flops = plan_nbeats(spec.shape, plan.lanes_per_wave, forecast::NbeatsTask::train, spec.options,
                                   spec.precision, target.profile.kind, target.profile.isa, target.profile.threads)
                           .flops;
  const double rate = target.profile.rate(spec.precision);
  const double step_seconds = rate > 0 ? flops / rate : 0;
  std::vector<std::string> notes = target.notes;
  if (s.data.empty()) notes.push_back("without --data, the memory of the series is not counted");
  if (!precision.reason.empty()) notes.push_back(precision.reason);
  std::vector<memory::LedgerEntry> entries = plan.parts;
  entries.insert(entries.begin(), {memory::Tag::context, "driver and program", plan.context_bytes});
  if (json) {
    nlohmann::ordered_json parts = nlohmann::ordered_json::array();
    for (const memory::LedgerEntry& e : entries)
      parts.push_back({{"tag", tag_name(e.tag)}, {"owner", e.owner}, {"bytes", e.bytes}});
    const nlohmann::ordered_json j = {{"schema_version", 1},
                                      {"task", "forecast"},
                                      {"device", {{"name", target.profile.name}}},
                                      {"precision", precision_name(spec.precision)},
                                      {"fits", true},
                                      {"limit_bytes", plan.limit_bytes},
                                      {"planned_bytes", plan.peak_bytes},
                                      {"lanes", lanes},
                                      {"lanes_per_wave", plan.lanes_per_wave},
                                      {"waves", plan.waves},
                                      {"recompute", plan.recompute},
                                      {"steps", steps},
                                      {"windows_per_step", s.windows_per_step()},
                                      {"least_step_seconds", step_seconds},
                                      {"parts", std::move(parts)},
                                      {"notes", notes}};
    fmt::print("{}\n", j.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
    return 0;
  }
  const forecast::NbeatsShape shape = lane_shape(members, members.lanes[0]);
  fmt::print("model        N-BEATS, {} of {}\n", format_count(M, "lane"), format_count(shape.blocks(), "block"));
  fmt::print("device       {}\n", target.profile.name);
  fmt::print(
      "task         forecast in {}{}\n\n", precision_name(spec.precision),
      s.folds > 0 ? fmt::format(", {} in {}", format_count(s.folds, "fold"), format_count(trainings, "training")) : "");
  print_ledger(entries, plan.limit_bytes);
  fmt::print("waves        {} of {}{}\n", format_count(plan.waves), format_count(plan.lanes_per_wave, "lane"),
             plan.recompute ? ", with full recompute" : "");
  fmt::print("steps        {} of {} per lane", format_count(steps), format_count(s.windows_per_step(), "window"));
  if (step_seconds > 0) fmt::print("; a wave's step takes at least {}", format_duration(step_seconds));
  fmt::print("\n");
  for (const std::string& note : notes) fmt::print("note: {}\n", note);
  return 0;
}

}  // namespace brim::cli
