// SPDX-License-Identifier: Apache-2.0
// brim forecast: options of its subcommands, and training of ensembles on series from files. Forecasting and evaluation
// are in forecast_predict.cc, rolling backtests in forecast_roll.cc.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <memory>

#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/timeline.h"
#include "base/units.h"
#include "cli/forecast_verbs.h"
#include "cli/verb.h"
#include "forecast/ensemble.h"
#include "forecast/settings.h"
#include "forecast/trial.h"
#include "report/roll_report.h"

namespace brim::cli {
namespace {

using forecast::ForecastSettings;
using forecast::SeriesStore;

}  // namespace

ForecastSettings settings_of(const ForecastFlags& f, const FlagValues& values) {
  ForecastSettings settings;
  std::vector<std::string> notes;
  if (!f.config.empty()) notes = apply_yaml(settings, f.config);
  // Flags override the file, also for repeatable keys.
  if (values.contains("data")) settings.data.clear();
  if (values.contains("actual")) settings.actual.clear();
  if (values.contains("plot_series")) settings.plot_series.clear();
  for (const auto& [key, given] : values)
    for (const std::string& value : given) {
      if (value.empty()) fail(ErrorCode::usage, "--{}: missing value", dashed(key));
      if (std::string note = apply_setting(settings, key, value); !note.empty()) notes.push_back(note);
    }
  for (const auto& note : notes)
    if (!f.quiet) log_info("{}", note);
  check_settings(settings);
  if (settings.data.empty()) fail(ErrorCode::usage, Remedy{"set `data=FILE`"}, "no data");
  return settings;
}

SeriesStore read_store(const std::vector<std::string>& paths, rows::SeriesReaderOptions options, const char* title,
                       bool quiet) {
  Progress progress(title, STDERR_FILENO, quiet);
  options.progress = [&](int64_t done, int64_t total) {
    progress.update({static_cast<double>(done), static_cast<double>(total), format_bytes(done)});
  };
  options.stop = &stop_requested();
  SeriesStore store(rows::read_series(paths, options));
  progress.finish();
  if (!quiet)
    for (const std::string& note : store.notes()) log_info("{}: {}", title, note);
  return store;
}

namespace {

std::string covariate_text(const std::vector<rows::CovariateColumn>& columns) {
  constexpr const char* kKinds[] = {"future", "past", "static"};
  std::vector<std::string> names;
  for (const rows::CovariateColumn& column : columns)
    names.push_back(fmt::format("{} ({}{})", column.name, kKinds[static_cast<size_t>(column.kind)],
                                column.categorical ? ", categorical" : ""));
  std::sort(names.begin(), names.end());
  return names.empty() ? "no covariates" : fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

rows::SeriesReaderOptions reader_options_for(const ForecastSettings& s, const std::string& name,
                                             const forecast::CovariateSpec& trained) {
  rows::SeriesReaderOptions options = s.reader_options();
  const std::string given = covariate_text(options.covariates), own = covariate_text(trained.wanted());
  if (!options.covariates.empty() && given != own)
    fail(ErrorCode::usage, Remedy{"omit the columns: a model reads those it was trained with"},
         "{}: trained with {}, but the flags name {}", name, own, given);
  options.covariates = trained.wanted();
  return options;
}

namespace {

std::string card_text(const ForecastSettings& s, const forecast::NbeatsModel& model, const SeriesStore& store,
                      const forecast::TrainedEnsemble& trained, int64_t steps) {
  std::string text = fmt::format(
      "# N-BEATS, {} lanes\n\nForecasts the {} after the end of a series, as the median of its lanes. Trained by "
      "`brim forecast train` on {} series with {} in {:.1f} s, {} steps of {} windows per lane.\n\n"
      "| lane | lookback | loss | last training loss | best step |\n| --- | --- | --- | --- | --- |\n",
      model.lanes.size(), format_count(model.horizon, "point"), format_count(store.size()),
      format_count(static_cast<int64_t>(store.values().size()), "point"), trained.seconds, format_count(steps),
      format_count(s.windows_per_step()));
  size_t lane = 0;
  for (size_t i = 0; i < trained.last_losses.size(); ++i) {
    if (std::isnan(trained.last_losses[i])) continue;
    const ops::LaneSpec& spec = model.lanes[lane].spec;
    text +=
        fmt::format("| {} | {} | {} | {:.5g} | {} |\n", lane++, spec.lookback, forecast::forecast_loss_name(spec.loss),
                    trained.last_losses[i], trained.best_steps[i] < 0 ? "last" : format_count(trained.best_steps[i]));
  }
  return text + fmt::format("\n    brim forecast predict --model {} --data FILE\n", s.output);
}

// Whether to combine N-BEATS with baselines.
bool combines(const ForecastSettings& s) {
  if (s.model.empty() || s.model == "nbeats") return false;
  if (s.model == "auto") return true;
  if (forecast::baseline_of(s.model))
    fail(ErrorCode::usage, Remedy{fmt::format("run `brim forecast predict --model {}`", s.model)},
         "brim forecast train: --model {}: baselines need no training", s.model);
  fail(ErrorCode::usage, "brim forecast train: --model {}: use nbeats or auto", s.model);
}

forecast::Trial try_once(const ForecastSettings& s, const SeriesStore& store, const forecast::NbeatsModel& members,
                         int64_t origins, bool combine, forecast::EnsembleDevice& on,
                         const std::filesystem::path& state, ForecastLive& live, bool quiet) {
  Progress progress("trial without the last " + format_count(origins, "horizon"), STDERR_FILENO, quiet);
  forecast::Trial trial = try_ensemble(
      on, s, store, members, origins, combine, state,
      [&](const forecast::EnsembleProgress& p) {
        live.update(p.wave * p.steps + p.step, p.waves * p.steps, p.loss);
        progress.update({static_cast<double>(p.wave * p.steps + p.step), static_cast<double>(p.waves * p.steps),
                         fmt::format("step {} of {} · loss {:.4g}", p.step, p.steps, p.loss)});
      },
      &stop_requested());
  progress.finish();
  if (trial.interrupted) fail(ErrorCode::interrupted, "interrupted; repeat the command to continue (in {})", s.output);
  return trial;
}

// Tries other histories with the chosen number of steps, and sets the one with the lowest error.
void try_histories(ForecastSettings& s, bool combine, const SeriesStore& store, forecast::Trial& best,
                   forecast::EnsembleDevice& on, const std::filesystem::path& state, ForecastLive& live, bool quiet) {
  constexpr int64_t kMostSteps = 300;  // more would take longer than the training
  if (s.max_steps > kMostSteps) return;
  double chosen = s.history_size;
  std::string tried = fmt::format("{:.3f} with {:g}", best.scores[0].error, chosen);
  for (const double history : forecast::tried_histories(chosen)) {
    s.history_size = history;
    forecast::Trial trial = try_once(s, store, ensemble_of(s, store), best.origins, combine, on,
                                     state / fmt::format("trial-{}-{:g}", s.max_steps, history), live, quiet);
    const double error = trial.scores[0].error;
    tried += fmt::format(", {:.3f} with {:g}", error, history);
    if (!(error < best.scores[0].error)) continue;
    best = std::move(trial);
    chosen = history;
  }
  s.history_size = chosen;
  if (!quiet)
    print_stderr("history: {:g} horizons (error relative to naive: {}; override with --history-size)\n", chosen, tried);
}

// Trains on the series without their last horizons, to learn the errors of the model. Unless the number of steps is
// given, fewer steps are tried first, and the number with the lowest error is set; with `fit_history`, the history too.
forecast::Trial try_model(ForecastSettings& s, bool steps_given, bool fit_history, bool combine,
                          const SeriesStore& store, const forecast::NbeatsModel& members, forecast::EnsembleDevice& on,
                          const std::filesystem::path& state, ForecastLive& live, bool quiet) {
  const int64_t origins = trial_origins(s, store, members.season);
  if (origins == 0) {
    if (combine)
      fail(ErrorCode::bad_data, Remedy{"provide longer series, or set a shorter `horizon`"},
           "{}: `model=auto` compares models on held-out horizons, for which the series are too short", s.data[0]);
    if (s.held_out > 0 && !quiet)
      log_info("the series are too short to hold out a horizon: the model cannot forecast intervals");
    return {};
  }
  const bool traced = Timeline::enabled();
  Timeline::enable(false);  // a trace shows the training only
  const std::vector<int64_t> all = steps_given ? std::vector{s.max_steps} : forecast::tried_steps(s.max_steps);
  forecast::Trial best;
  std::string tried;
  int64_t best_steps = s.max_steps;
  for (const int64_t steps : all) {
    s.max_steps = steps;
    forecast::Trial trial =
        try_once(s, store, members, origins, combine, on, state / fmt::format("trial-{}", steps), live, quiet);
    const double error = trial.scores[0].error;
    tried += fmt::format("{}{:.3f} after {}", tried.empty() ? "" : ", ", error, format_count(steps));
    if (best.origins > 0 && !(error < best.scores[0].error)) break;
    best = std::move(trial);
    best_steps = steps;
  }
  s.max_steps = best_steps;
  if (fit_history && !steps_given) try_histories(s, combine, store, best, on, state, live, quiet);
  Timeline::enable(traced);
  if (quiet) return best;
  std::string line;
  for (const forecast::TrialScore& score : best.scores)
    line += fmt::format("{}{} {:.3f}", line.empty() ? "" : ", ", score.name, score.scores.mase);
  print_stderr("held out: {} of {} series · MASE: {}\n", format_count(origins, "horizon"), format_count(best.series),
               line);
  if (!steps_given)
    print_stderr("steps: {} (error relative to naive: {}; override with --max-steps)\n", format_count(best_steps),
                 tried);
  if (combine) print_stderr("forecasts: {}\n", best.scores[best.chosen].name);
  return best;
}

void keep_trial(const forecast::Trial& trial, bool combine, forecast::NbeatsModel& model) {
  constexpr size_t kKeptErrors = 199;  // allows levels up to 99.5 %
  if (trial.origins == 0) return;
  if (model.quantiles.empty())
    for (size_t h = 0; h < static_cast<size_t>(model.horizon); ++h)
      model.held_out.push_back(trial.errors.sizes(h, kKeptErrors));
  if (!combine) return;
  const forecast::TrialScore& chosen = trial.scores[trial.chosen];
  if (chosen.nbeats) model.combined.emplace_back("nbeats");
  for (const forecast::Baseline b : chosen.baselines) model.combined.emplace_back(baseline_name(b));
}

// The directory must be new, empty, or hold an interrupted training.
void check_output(const ForecastSettings& s) {
  if (s.output.empty()) fail(ErrorCode::usage, "brim forecast train: --output is required");
  const std::filesystem::path output = s.output;
  std::error_code ec;
  const bool begun =
      std::filesystem::is_directory(output / "state", ec) && !std::filesystem::exists(output / "config.json", ec);
  if (std::filesystem::exists(output, ec) && !std::filesystem::is_empty(output, ec) && !begun)
    fail(ErrorCode::cannot_write, "{}: not empty; choose another directory with --output", s.output);
}

// The model given with `from`, whose shape the settings take.
forecast::NbeatsModel open_base(ForecastSettings& s) {
  std::error_code ec;
  if (!std::filesystem::is_directory(s.from, ec))
    fail(ErrorCode::usage, "brim forecast train: --from {}: give a directory written by `brim forecast train`", s.from);
  if (!s.model.empty()) fail(ErrorCode::usage, Remedy{"omit `model`"}, "`model={}`: kept from {}", s.model, s.from);
  forecast::NbeatsModel base = forecast::load_nbeats(s.from);
  take_shape(s, base);
  return base;
}

int64_t used_memory(forecast::EnsembleDevice& on) {
  const device::MemoryInfo memory = on.device().memory();
  return memory.total_bytes - memory.free_bytes;
}

// Further training changes little: by default a tenth of the steps of a new training.
constexpr int64_t kFurtherShare = 10;

// For the report: forecasts with the contribution of each stack, if a stack can be interpreted, else empty.
forecast::EnsembleForecasts forecasts_of_stacks(forecast::EnsembleDevice& on, const forecast::NbeatsModel& model,
                                                const SeriesStore& store) {
  const std::vector<forecast::StackSpec>& stacks = model.lanes[0].stacks;
  const bool interpretable = std::any_of(stacks.begin(), stacks.end(),
                                         [](const auto& stack) { return stack.kind != forecast::StackKind::generic; });
  if (!interpretable) return {};
  return predict_ensemble(on, model, store, true, {}, nullptr);
}

void print_trained(const ForecastSettings& s, int64_t lanes, int64_t good, int64_t steps,
                   const forecast::TrainedEnsemble& trained) {
  if (const int64_t failed = lanes - good; failed > 0)
    log_warning("{} of {} lanes failed (gradients were not finite) and were dropped", failed, lanes);
  print_stderr(
      "{} in {:.1f} s · {:.2f} ms per lane and step · device busy {:.0f} %{} · {} of {} planned in {} · model "
      "in {}\n",
      format_count(lanes, "lane"), trained.seconds, trained.seconds * 1e3 / static_cast<double>(lanes * steps),
      100 * std::min(1.0, trained.busy_seconds / std::max(1e-9, trained.seconds)),
      s.target_utilization > 0 ? fmt::format(" (target {:g} %)", s.target_utilization) : "",
      format_bytes(trained.plan.peak_bytes), format_bytes(trained.plan.limit_bytes),
      format_count(trained.plan.waves, "wave"), s.output);
}

int run_forecast_train(const ForecastFlags& f) {
  ForecastSettings s = settings_of(f, f.train_values);
  const bool continued = !s.from.empty();
  forecast::NbeatsModel base;
  if (continued) base = open_base(s);
  const bool combine = combines(s);
  if (combine && s.held_out == 0)
    fail(ErrorCode::usage, Remedy{"set `held_out=2`"}, "`model=auto` requires held-out horizons");
  if (s.horizon == 0) fail(ErrorCode::usage, "brim forecast train: --horizon is required");
  check_output(s);
  const std::filesystem::path output = s.output, state = output / "state";
  stop_on_signals();
  ForecastTrace trace(f.trace);
  const SeriesStore store = read_store(
      s.data, continued ? reader_options_for(s, s.from, base.covariates) : s.reader_options(), "data", f.quiet);
  const bool steps_given = s.max_steps > 0 || s.epochs > 0;
  const bool fits_history = forecast::fit_history(s, store);
  for (const std::string& note : apply_preset(s, store.frequency()))
    if (!f.quiet) log_info("{}", note);
  if (continued && !steps_given) s.max_steps = std::max<int64_t>(1, s.max_steps / kFurtherShare);
  forecast::NbeatsModel model = continued ? continued_ensemble(s, store, std::move(base)) : ensemble_of(s, store);
  const auto lanes = static_cast<int64_t>(model.lanes.size());
  forecast::EnsembleDevice on(s);
  const int64_t used_before = used_memory(on);
  ForecastLive live("forecast train", s, on);
  // The base may have seen the last horizons of the series; its own held-out errors stay valid.
  forecast::Trial trial;
  if (!continued) {
    trial = try_model(s, steps_given, fits_history, combine, store, model, on, state, live, f.quiet);
    model = ensemble_of(s, store);
  }
  const forecast::NbeatsModel members = model;
  const int64_t steps = steps_of(s, store);
  if (!f.quiet)
    print_stderr("{} of {} · {} of {} · {} · {}\n", format_count(lanes, "lane"),
                 format_count(lane_shape(model, model.lanes[0]).blocks(), "block"), format_count(steps, "step"),
                 format_count(s.windows_per_step(), "window"), on.device().name(), precision_name(on.precision()));
  Progress progress("training", STDERR_FILENO, f.quiet);
  trace.begins(on);
  const forecast::TrainedEnsemble trained = train_ensemble(
      on, s, store, model, state,
      [&](const forecast::EnsembleProgress& p) {
        live.update(p.wave * p.steps + p.step, p.waves * p.steps, p.loss);
        const auto done = static_cast<double>(p.wave * p.steps + p.step);
        progress.update({done, static_cast<double>(p.waves * p.steps),
                         fmt::format("step {} of {} · loss {:.4g}", p.step, p.steps, p.loss)});
      },
      &stop_requested());
  progress.finish();
  if (trained.interrupted)
    fail(ErrorCode::interrupted, "interrupted; repeat the command to continue (in {})", s.output);
  keep_trial(trial, combine, model);
  auto writing = std::make_unique<ScopedZone>(Zone::write);
  save_nbeats(s.output, model);
  io::write_file_atomically(std::filesystem::path(s.output) / "README.md", card_text(s, model, store, trained, steps));
  const forecast::EnsembleForecasts shown = forecasts_of_stacks(on, model, store);
  io::write_file_atomically(output / "report.html",
                            report::ensemble_html({s, store, model, trained, trial, shown, on.device().name(),
                                                   precision_name(on.precision()), used_before, used_memory(on)}));
  std::error_code ec;
  std::filesystem::remove_all(state, ec);
  writing.reset();
  trace.ends("forecast train", s, on, store, members, trained.plan, lanes, steps, trained.resumed_lanes > 0);
  trace.write();
  if (!f.quiet) print_trained(s, lanes, static_cast<int64_t>(model.lanes.size()), steps, trained);
  return 0;
}

}  // namespace

void add_rows(CLI::App& app, FlagValues& values, std::initializer_list<std::string_view> names) {
  static const std::vector<SettingInfo> infos = forecast::forecast_settings().infos();
  for (const std::string_view given : names) {
    const bool is_short = given.size() > 2 && given[1] == ',';
    const SettingInfo* info = train::find_info(infos, given.substr(is_short ? 2 : 0));
    BRIM_CHECK(info != nullptr, "no setting {}", given);
    add_kept_flag(app, *info, values, Spelling::dashes, is_short ? given.substr(0, 1) : "");
  }
}

std::function<int()> setup_forecast(CLI::App& app) {
  auto f = std::make_shared<ForecastFlags>();
  f->train = app.add_subcommand("train", "train an ensemble of N-BEATS models");
  add_rows(*f->train, f->train_values,
           {"data",         "horizon",        "o,output",        "preset",
            "lookbacks",    "losses",         "repeats",         "max_steps",
            "epochs",       "batch_size",     "learning_rate",   "num_lr_decays",
            "history_size", "input_size",     "stack_types",     "n_blocks",
            "mlp_units",    "shared_weights", "n_harmonics",     "n_basis",
            "scaler_type",  "sampling",       "loss_mean",       "season",
            "random_seed",  "level",          "val_check_steps", "early_stop_patience_steps",
            "save_steps",   "model",          "held_out",        "calendar",
            "from"});
  f->roll = add_roll(app, *f);
  f->predict = app.add_subcommand("predict", "forecast series with a trained model or a baseline");
  add_rows(*f->predict, f->predict_values,
           {"data", "model", "horizon", "o,output", "alias", "season", "level", "held_out", "components", "plot",
            "plot_series"});
  f->eval = app.add_subcommand("eval", "evaluate forecasts against actual values");
  add_rows(*f->eval, f->eval_values,
           {"data", "actual", "model", "forecast", "alias", "season", "level", "held_out", "baselines"});
  f->eval->add_flag("--json", f->json, "print JSON");
  for (const auto& [verb, values] : {std::pair(f->train, &f->train_values), std::pair(f->predict, &f->predict_values),
                                     std::pair(f->eval, &f->eval_values), std::pair(f->roll, &f->roll_values)}) {
    add_rows(
        *verb, *values,
        {"layout", "id_column", "time_column", "target_column", "freq", "gaps", "delimiter", "device", "precision",
         "memory_limit", "leave_free", "threads", "future_columns", "past_columns", "static_columns", "categorical"});
    verb->add_option("--config", f->config, "YAML file with these flags as keys");
    if (verb == f->train || verb == f->roll)
      verb->add_option("--trace", f->trace, "write a timeline of the run to this file (open it in ui.perfetto.dev)");
    verb->add_flag("-q,--quiet", f->quiet, "print no progress and no summary");
    add_environment(*verb);
  }
  app.require_subcommand(1);
  return [f] {
    if (f->train->parsed()) return run_forecast_train(*f);
    if (f->roll->parsed()) return run_forecast_roll(*f);
    return f->predict->parsed() ? run_predict(*f) : run_forecast_eval(*f);
  };
}

}  // namespace brim::cli
