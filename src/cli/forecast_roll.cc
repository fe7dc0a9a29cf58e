// SPDX-License-Identifier: Apache-2.0
// brim forecast roll: refits an ensemble repeatedly along the series and evaluates its forecasts. Single fits are in
// forecast.cc.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <iostream>
#include <limits>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/timeline.h"
#include "base/units.h"
#include "cli/forecast_verbs.h"
#include "cli/verb.h"
#include "engine/run_stats.h"
#include "forecast/forecast_file.h"
#include "forecast/roll.h"
#include "io/atomic_file.h"
#include "report/roll_report.h"
#include "rows/file_checks.h"

namespace brim::cli {
namespace {

using forecast::ForecastSettings;
using forecast::SeriesStore;

// The directory must be new, empty, or hold a run of this kind.
std::filesystem::path state_in(const std::string& output) {
  std::filesystem::path state = std::filesystem::path(output) / "state";
  std::error_code ec;
  if (std::filesystem::exists(output, ec) && !std::filesystem::is_directory(output, ec))
    fail(ErrorCode::cannot_write, "{}: is a file; choose a directory with --output", output);
  if (std::filesystem::exists(output, ec) && !std::filesystem::is_empty(output, ec) &&
      !std::filesystem::is_directory(state, ec))
    fail(ErrorCode::cannot_write, "{}: not a rolling run; choose another directory with --output", output);
  return state;
}

forecast::RollScore write_forecasts(const ForecastSettings& s, const SeriesStore& store,
                                    const forecast::NbeatsModel& members, const forecast::RollPlan& plan,
                                    const forecast::RollRun& run, const std::string& alias) {
  std::vector<std::string> columns = {"y", alias};
  for (const double level : interval_levels(s))
    for (const char* bound : {"lo", "hi"}) columns.push_back(fmt::format("{}-{}-{:g}", alias, bound, level));
  forecast::ForecastWriter writer((std::filesystem::path(s.output) / "forecasts.csv").string(), columns,
                                  &stop_requested(), true);
  std::vector<double> values;
  forecast::RollScore score =
      score_roll(s, store, members, plan, run, [&](const forecast::Fold&, const forecast::RolledForecast& f) {
        const std::string cutoff = store.time_text(f.series, f.known - 1);
        for (size_t h = 0; h < f.forecast.size(); ++h) {
          values = {static_cast<double>(f.actual[h]), f.forecast[h]};
          for (size_t l = 0; l < f.low.size(); ++l) values.insert(values.end(), {f.low[l][h], f.high[l][h]});
          writer.write(store.id(f.series), store.time_text(f.series, f.known + static_cast<int64_t>(h)), values,
                       cutoff);
        }
      });
  writer.commit();
  return score;
}

}  // namespace

ForecastLive::ForecastLive(const char* command, const ForecastSettings& s, forecast::EnsembleDevice& on)
    : device_(on.device()) {
  record_.verb = command;
  record_.model = s.output;
  record_.set_device(device_);
  record_.precision = precision_name(on.precision());
  record_.limit_bytes = memory::Ledger::of(device_).limit_bytes();
  publisher_.publish(record_);
}

void ForecastLive::update(int64_t step, int64_t steps, double loss) {
  constexpr int64_t kApartNs = 200'000'000;
  if (!publisher_.active() || now_ns() - last_ns_ < kApartNs) return;
  last_ns_ = now_ns();
  record_.step = step;
  record_.total_steps = steps;
  record_.loss = loss;
  record_.done = static_cast<double>(step) / static_cast<double>(steps);
  record_.planned_bytes = memory::Ledger::of(device_).reserved_bytes();
  record_.peak_bytes = engine::held_bytes(device_);
  publisher_.publish(record_);
}

CLI::App* add_roll(CLI::App& app, ForecastFlags& flags) {
  CLI::App* roll = app.add_subcommand("roll", "backtest: retrain along the series and forecast from every cutoff");
  roll->alias("backtest");
  add_rows(*roll, flags.roll_values,
           {"data",
            "horizon",
            "o,output",
            "folds",
            "step",
            "refit",
            "window",
            "gap",
            "warm",
            "warm_steps",
            "anchor_every",
            "shrink",
            "level",
            "baselines",
            "keep_models",
            "calendar",
            "val_check_steps",
            "early_stop_patience_steps",
            "extend",
            "save_steps",
            "alias",
            "preset",
            "lookbacks",
            "losses",
            "repeats",
            "max_steps",
            "epochs",
            "batch_size",
            "learning_rate",
            "input_size",
            "stack_types",
            "n_blocks",
            "num_lr_decays",
            "history_size",
            "mlp_units",
            "shared_weights",
            "n_harmonics",
            "n_basis",
            "scaler_type",
            "sampling",
            "loss_mean",
            "season",
            "random_seed",
            "target_utilization"});
  return roll;
}

int run_forecast_roll(const ForecastFlags& f) {
  ForecastSettings s = settings_of(f, f.roll_values);
  if (s.horizon == 0) fail(ErrorCode::usage, "brim forecast roll: --horizon is required");
  if (s.output.empty()) fail(ErrorCode::usage, "brim forecast roll: --output is required");
  const std::filesystem::path state = state_in(s.output);
  std::optional<int64_t> first_cutoff;
  if (s.extend) first_cutoff = forecast::rolled_first_cutoff(state);
  if (s.extend && !first_cutoff) fail(ErrorCode::usage, "--extend: {} contains no run; omit it to start one", s.output);
  if (s.folds == 0 && !s.extend) fail(ErrorCode::usage, "brim forecast roll: --folds is required");
  stop_on_signals();
  ForecastTrace trace(f.trace);
  const SeriesStore store = read_store(s.data, s.reader_options(), "data", f.quiet);
  for (const std::string& note : apply_preset(s, store.frequency()))
    if (!f.quiet) log_info("{}", note);
  const forecast::NbeatsModel members = ensemble_of(s, store);
  const forecast::RollPlan plan = plan_roll(s, store, members, first_cutoff);
  forecast::EnsembleDevice on(s);
  const auto M = static_cast<int64_t>(members.lanes.size());
  if (!f.quiet)
    print_stderr("{} · {} of {} · {} of {} · warm start: {} · {} · {}\n",
                 format_count(static_cast<int64_t>(plan.folds.size()), "fold"),
                 format_count(static_cast<int64_t>(plan.trainings.size()), "training"), format_count(M, "lane"),
                 format_count(plan.steps, "step"), format_count(s.windows_per_step(), "window"),
                 warm_start_name(s.warm), on.device().name(), precision_name(on.precision()));
  ForecastLive live("forecast roll", s, on);
  Progress progress("rolling", STDERR_FILENO, f.quiet);
  trace.begins(on);
  const forecast::RollRun run = run_roll(
      on, s, store, members, plan, state,
      [&](const forecast::RollProgress& p) {
        const double share = static_cast<double>(p.step) / static_cast<double>(p.steps);
        live.update(p.lanes_done * p.steps + p.step * p.wave_lanes, p.lanes * p.steps, p.loss);
        progress.update({static_cast<double>(p.lanes_done) + share * static_cast<double>(p.wave_lanes),
                         static_cast<double>(p.lanes),
                         fmt::format("{} of {} lanes · step {} of {} · loss {:.4g}", p.lanes_done, p.lanes, p.step,
                                     p.steps, p.loss)});
      },
      &stop_requested());
  progress.finish();
  if (run.interrupted) fail(ErrorCode::interrupted, "interrupted; repeat the command to continue (in {})", s.output);
  auto writing = std::make_unique<ScopedZone>(Zone::write);
  const std::string alias = s.alias.empty() ? "NBEATS" : s.alias;
  const forecast::RollScore score = write_forecasts(s, store, members, plan, run, alias);
  report::RollRecord record{s,    store, members, plan, run, score, on.device().name(), precision_name(on.precision()),
                            alias};
  if (run.seconds > 0)
    record.busy = std::min(1.0, run.busy_seconds / run.seconds);
  else
    record.busy = std::numeric_limits<double>::quiet_NaN();
  const std::string json = roll_json(record);
  io::write_file_atomically(std::filesystem::path(s.output) / "roll.json", json);
  io::write_file_atomically(std::filesystem::path(s.output) / "report.html", roll_html(record));
  writing.reset();
  trace.ends("forecast roll", s, on, store, members, run.memory, static_cast<int64_t>(run.lanes.size()), plan.steps,
             run.resumed_lanes > 0);
  trace.write();
  if (f.quiet) return 0;
  fmt::print("{}\n", report::roll_headline(score));
  print_stderr("MASE {:.3f}, naive {:.3f}, seasonal naive {:.3f} · {} in {:.1f} s{} · {} of {} planned in {} · {}\n",
               score.model.mase, score.naive.mase, score.snaive.mase,
               format_count(static_cast<int64_t>(run.lanes.size()), "lane"), run.seconds,
               run.resumed_lanes > 0 ? fmt::format(" ({} resumed)", format_count(run.resumed_lanes)) : "",
               format_bytes(run.memory.peak_bytes), format_bytes(run.memory.limit_bytes),
               format_count(run.memory.waves, "wave"), s.output);
  return 0;
}

}  // namespace brim::cli
