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

// Plan of a training or of all trainings of a backtest, with the figures that are printed.
struct ForecastPlan {
  forecast::NbeatsModel members;
  forecast::EnsemblePlan plan;
  std::vector<memory::LedgerEntry> entries;  // parts of the largest wave and the context
  ops::Precision precision = ops::Precision::fp32;
  int64_t trainings = 1, steps = 0;
  // Time of the GEMMs alone at the throughput of large ones: a lower bound for the step; 0 if unknown.
  double step_seconds = 0;
  std::vector<std::string> notes;

  int64_t lanes() const { return trainings * static_cast<int64_t>(members.lanes.size()); }
};

forecast::ForecastSettings plan_settings(const std::string& config, const FlagValues& values) {
  forecast::ForecastSettings s;
  if (!config.empty())
    for (const std::string& note : apply_yaml(s, config)) log_info("{}", note);
  for (const auto& [key, given] : values) forecast::clear_list(s, key);
  for (const auto& [key, given] : values)
    for (const std::string& value : given) apply_setting(s, key, value);
  check_settings(s);
  if (s.horizon == 0) fail(ErrorCode::usage, "brim plan --task forecast: --horizon is required");
  return s;
}

ForecastPlan make_plan(forecast::ForecastSettings& s, const ForecastPlanTarget& target) {
  ForecastTerminal terminal(false, "");
  const forecast::SeriesStore store =
      s.data.empty() ? no_series()
                     : report::read_store(s.data, s.reader_options(), "data", {terminal, stop_requested()});
  apply_preset(s, store.frequency());
  ForecastPlan p{.members = ensemble_of(s, store), .notes = target.notes};
  const plan::DeviceProfile& profile = target.profile;
  const plan::PrecisionChoice precision = forecast::lane_precision(s.precision, profile);
  p.precision = precision.precision;
  forecast::WaveSpec spec = training_spec(p.precision, profile.threads, s, p.members);
  p.steps = steps_of(s, store);
  if (s.folds > 0) {
    spec.own_cutoffs = true;
    p.trainings = (s.folds + s.refit - 1) / s.refit + 1;
    if (!s.data.empty()) {
      const forecast::RollPlan roll = plan_roll(s, store, p.members);
      p.trainings = static_cast<int64_t>(roll.trainings.size());
      p.steps = roll.steps;
    }
  }
  const int64_t limit = s.memory_limit.on(target.memory, profile.name, s.limit_origin);
  p.plan = plan_lanes(spec, p.lanes(), store.size(), static_cast<int64_t>(store.values().size()),
                      {profile.name, profile.kind, limit, profile.context_bytes});
  spec.options.recompute = p.plan.recompute;
  const double flops = plan_nbeats(spec.shape, p.plan.lanes_per_wave, forecast::NbeatsTask::train, spec.options,
                                   spec.precision, profile.kind, profile.isa, profile.threads)
                           .flops;
  const double rate = profile.rate(spec.precision);
  p.step_seconds = rate > 0 ? flops / rate : 0;
  p.entries = p.plan.parts;
  p.entries.insert(p.entries.begin(), {memory::Tag::context, "driver and program", p.plan.context_bytes});
  if (s.data.empty()) p.notes.push_back("without --data, the memory of the series is not counted");
  if (!precision.reason.empty()) p.notes.push_back(precision.reason);
  return p;
}

nlohmann::ordered_json to_json(const ForecastPlan& p, const std::string& device, int64_t windows_per_step) {
  nlohmann::ordered_json parts = nlohmann::ordered_json::array();
  for (const memory::LedgerEntry& e : p.entries)
    parts.push_back({{"tag", tag_name(e.tag)}, {"owner", e.owner}, {"bytes", e.bytes}});
  return {{"schema_version", 1},
          {"task", "forecast"},
          {"device", {{"name", device}}},
          {"precision", precision_name(p.precision)},
          {"fits", true},
          {"limit_bytes", p.plan.limit_bytes},
          {"planned_bytes", p.plan.peak_bytes},
          {"lanes", p.lanes()},
          {"lanes_per_wave", p.plan.lanes_per_wave},
          {"waves", p.plan.waves},
          {"recompute", p.plan.recompute},
          {"steps", p.steps},
          {"windows_per_step", windows_per_step},
          {"least_step_seconds", p.step_seconds},
          {"parts", std::move(parts)},
          {"notes", p.notes}};
}

void print_plan(const ForecastPlan& p, const std::string& device, const forecast::ForecastSettings& s) {
  const forecast::NbeatsShape shape = lane_shape(p.members, p.members.lanes[0]);
  fmt::print("model        N-BEATS, {} of {}\n", format_count(static_cast<int64_t>(p.members.lanes.size()), "lane"),
             format_count(shape.blocks(), "block"));
  fmt::print("device       {}\n", device);
  fmt::print("task         forecast in {}{}\n\n", precision_name(p.precision),
             s.folds > 0
                 ? fmt::format(", {} in {}", format_count(s.folds, "fold"), format_count(p.trainings, "training"))
                 : "");
  print_ledger(p.entries, p.plan.limit_bytes);
  fmt::print("waves        {} of {}{}\n", format_count(p.plan.waves), format_count(p.plan.lanes_per_wave, "lane"),
             p.plan.recompute ? ", with full recompute" : "");
  fmt::print("steps        {} of {} per lane", format_count(p.steps), format_count(s.windows_per_step(), "window"));
  if (p.step_seconds > 0) fmt::print("; a wave's step takes at least {}", format_duration(p.step_seconds));
  fmt::print("\n");
  for (const std::string& note : p.notes) fmt::print("note: {}\n", note);
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
  forecast::ForecastSettings s = plan_settings(config, values);
  const ForecastPlan plan = make_plan(s, target);
  if (!json) {
    print_plan(plan, target.profile.name, s);
    return 0;
  }
  const nlohmann::ordered_json j = to_json(plan, target.profile.name, s.windows_per_step());
  fmt::print("{}\n", j.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  return 0;
}

}  // namespace brim::cli
