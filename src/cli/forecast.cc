// SPDX-License-Identifier: Apache-2.0
// brim forecast train, predict and eval: trains ensembles on series from files, forecasts and evaluates forecasts.
// Rolling backtests are in forecast_roll.cc.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/timeline.h"
#include "base/units.h"
#include "cli/forecast_verbs.h"
#include "cli/verb.h"
#include "forecast/baselines.h"
#include "forecast/ensemble.h"
#include "forecast/evaluate.h"
#include "forecast/forecast_file.h"
#include "forecast/settings.h"
#include "report/roll_report.h"
#include "rows/file_checks.h"

namespace brim::cli {
namespace {

using forecast::Baseline;
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

// Forecaster by name or model directory.
struct NamedModel {
  std::optional<Baseline> baseline;
  forecast::NbeatsModel nbeats;  // if given as a directory
};

NamedModel open_model(const std::string& model) {
  NamedModel named;
  named.baseline = forecast::baseline_of(model);
  if (named.baseline) return named;
  std::error_code ec;
  if (!std::filesystem::is_directory(model, ec))
    fail(ErrorCode::usage, "--model {}: use naive, snaive, naive2 or a directory written by `brim forecast train`",
         model);
  named.nbeats = forecast::load_nbeats(model);
  return named;
}

// Forecasts all series with a progress bar.
forecast::EnsembleForecasts ensemble_forecasts(const ForecastSettings& s, const forecast::NbeatsModel& model,
                                               const SeriesStore& store, bool quiet) {
  if (s.horizon > model.horizon)
    fail(ErrorCode::usage, "--horizon {}: {} forecasts at most {}", s.horizon, s.model,
         format_count(model.horizon, "point"));
  forecast::EnsembleDevice on(s);
  Progress progress("forecasting", STDERR_FILENO, quiet);
  auto forecasts = predict_ensemble(
      on, model, store, s.components,
      [&](int64_t done, int64_t total) {
        progress.update({static_cast<double>(done), static_cast<double>(total), format_count(done) + " series"});
      },
      &stop_requested());
  progress.finish();
  return forecasts;
}

// Interval of a quantile model: level in percent and indices of its bounds.
struct QuantileLevel {
  double level;
  size_t low, high;
};
std::vector<QuantileLevel> levels_of(const std::vector<float>& quantiles) {
  std::vector<QuantileLevel> levels;
  for (size_t low = quantiles.size() / 2; low-- > 0;)
    levels.push_back(
        {std::round(1e4 * (1 - 2 * static_cast<double>(quantiles[low]))) / 100, low, quantiles.size() - 1 - low});
  return levels;
}

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

int run_forecast_train(const ForecastFlags& f) {
  ForecastSettings s = settings_of(f, f.train_values);
  if (s.horizon == 0) fail(ErrorCode::usage, "brim forecast train: --horizon is required");
  if (s.output.empty()) fail(ErrorCode::usage, "brim forecast train: --output is required");
  const std::filesystem::path output = s.output, state = output / "state";
  std::error_code ec;
  const bool begun = std::filesystem::is_directory(state, ec) && !std::filesystem::exists(output / "config.json", ec);
  if (std::filesystem::exists(output, ec) && !std::filesystem::is_empty(output, ec) && !begun)
    fail(ErrorCode::cannot_write, "{}: not empty; choose another directory with --output", s.output);
  stop_on_signals();
  ForecastTrace trace(f.trace);
  const SeriesStore store = read_store(s.data, s.reader_options(), "data", f.quiet);
  for (const std::string& note : apply_preset(s, store.frequency()))
    if (!f.quiet) log_info("{}", note);
  forecast::NbeatsModel model = ensemble_of(s, store);
  const forecast::NbeatsModel members = model;
  const auto lanes = static_cast<int64_t>(model.lanes.size());
  const int64_t steps = steps_of(s, store);
  forecast::EnsembleDevice on(s);
  if (!f.quiet)
    print_stderr("{} of {} · {} of {} · {} · {}\n", format_count(lanes, "lane"),
                 format_count(lane_shape(model, model.lanes[0]).blocks(), "block"), format_count(steps, "step"),
                 format_count(s.windows_per_step(), "window"), on.device().name(), precision_name(on.precision()));
  ForecastLive live("forecast train", s, on);
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
  auto writing = std::make_unique<ScopedZone>(Zone::write);
  save_nbeats(s.output, model);
  io::write_file_atomically(std::filesystem::path(s.output) / "README.md", card_text(s, model, store, trained, steps));
  forecast::EnsembleForecasts shown;
  if (s.stack_types[0] != forecast::StackKind::generic) shown = predict_ensemble(on, model, store, true, {}, nullptr);
  io::write_file_atomically(
      output / "report.html",
      report::ensemble_html({s, store, model, trained, shown, on.device().name(), precision_name(on.precision())}));
  std::filesystem::remove_all(state, ec);
  writing.reset();
  trace.ends("forecast train", s, on, store, members, trained.plan, lanes, steps, trained.resumed_lanes > 0);
  trace.write();
  if (f.quiet) return 0;
  if (const int64_t failed = lanes - static_cast<int64_t>(model.lanes.size()); failed > 0)
    log_warning("{} of {} lanes failed (gradients were not finite) and were dropped", failed, lanes);
  print_stderr(
      "{} in {:.1f} s · {:.2f} ms per lane and step · device busy {:.0f} %{} · {} of {} planned in {} · model "
      "in {}\n",
      format_count(lanes, "lane"), trained.seconds, trained.seconds * 1e3 / static_cast<double>(lanes * steps),
      100 * std::min(1.0, trained.busy_seconds / std::max(1e-9, trained.seconds)),
      s.target_utilization > 0 ? fmt::format(" (target {:g} %)", s.target_utilization) : "",
      format_bytes(trained.plan.peak_bytes), format_bytes(trained.plan.limit_bytes),
      format_count(trained.plan.waves, "wave"), s.output);
  return 0;
}

int run_predict(const ForecastFlags& f) {
  const ForecastSettings s = settings_of(f, f.predict_values);
  if (s.model.empty())
    fail(ErrorCode::usage, "brim forecast predict: --model is required: DIR, naive, snaive or naive2");
  const NamedModel model = open_model(s.model);
  const int64_t horizon = s.horizon > 0 ? s.horizon : model.nbeats.horizon;
  if (horizon == 0) fail(ErrorCode::usage, "brim forecast predict: --horizon is required");
  const std::string output = s.output.empty() ? "-" : s.output;
  rows::refuse_output_over_input(output, rows::series_files(s.data));
  rows::refuse_foreign_output(output);
  if (output != "-") io::require_writable(output);
  stop_on_signals();
  const SeriesStore store = read_store(s.data, s.reader_options(), "data", f.quiet);
  const int64_t season = season_for(s, store.frequency());
  if (!f.quiet && model.baseline && *model.baseline != Baseline::naive)
    log_info("season: {}", format_count(season, "point"));
  forecast::EnsembleForecasts ensemble;
  if (!model.baseline) ensemble = ensemble_forecasts(s, model.nbeats, store, f.quiet);
  const std::string alias = !s.alias.empty() ? s.alias : model.baseline ? column_of(*model.baseline) : "NBEATS";
  std::vector<std::string> columns = {alias};
  const std::vector<QuantileLevel> levels = levels_of(ensemble.quantiles);
  for (const QuantileLevel& level : levels)
    for (const char* bound : {"lo", "hi"}) columns.push_back(fmt::format("{}-{}-{:g}", alias, bound, level.level));
  for (size_t c = 0; c < ensemble.stacks.size(); ++c) {
    const std::string& kind = ensemble.stacks[c];
    const bool twice = std::count(ensemble.stacks.begin(), ensemble.stacks.end(), kind) > 1;
    columns.push_back(fmt::format("{}-{}{}", alias, kind, twice ? fmt::format("-{}", c) : ""));
  }
  forecast::ForecastWriter writer(output, columns, &stop_requested());
  Progress progress("forecasting", STDERR_FILENO, f.quiet);
  for (int64_t i = 0; i < store.size(); ++i) {
    if (stop_requested()) fail(ErrorCode::interrupted, "interrupted; no output was written");
    progress.update({static_cast<double>(i), static_cast<double>(store.size()), format_count(i) + " series"});
    const auto length = static_cast<int64_t>(store.series(i).size());
    std::vector<std::vector<double>> all;  // by column
    if (model.baseline) {
      all = {forecast_baseline(*model.baseline, store.series(i), horizon, season)};
    } else {
      all = {ensemble.point(i)};
      for (const QuantileLevel& level : levels)
        for (const size_t quantile : {level.low, level.high}) all.push_back(ensemble.of(i, quantile));
      const auto C = static_cast<int64_t>(ensemble.stacks.size());
      for (int64_t c = 0; c < C; ++c) {
        const auto first = ensemble.components.begin() + (i * C + c) * ensemble.horizon;
        all.emplace_back(first, first + ensemble.horizon);
      }
    }
    std::vector<double> row(all.size());
    for (int64_t h = 0; h < horizon; ++h) {
      for (size_t c = 0; c < all.size(); ++c) row[c] = all[c][static_cast<size_t>(h)];
      writer.write(store.id(i), store.time_text(i, length + h), row);
    }
  }
  progress.finish();
  writer.commit();
  if (!f.quiet)
    print_stderr("{} series × {} in {}\n", format_count(store.size()), format_count(horizon, "point"),
                 output == "-" ? "stdout" : output);
  return 0;
}

nlohmann::ordered_json to_json(const forecast::Scores& s) {
  nlohmann::ordered_json j;
  const auto put = [&](const char* key, double value) {
    j[key] = std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
  };
  put("smape", s.smape);
  put("mase", s.mase);
  put("owa", s.owa);
  put("mae", s.mae);
  put("mape", s.mape);
  return j;
}

nlohmann::ordered_json number_or_null(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
}

nlohmann::ordered_json to_json(const forecast::ForecastEvaluation& e, const std::string& name,
                               const SeriesStore& data) {
  nlohmann::ordered_json j = {{"schema_version", 1},
                              {"model", name},
                              {"series", e.series},
                              {"points", e.points},
                              {"horizon", e.horizon},
                              {"season", e.season},
                              {"frequency", frequency_name(data.frequency())},
                              {"series_not_in_data", e.not_in_data},
                              {"series_without_scale", e.without_scale}};
  j.update(to_json(e.model));
  j["skill_naive"] = number_or_null(e.skill_naive);
  j["skill_snaive"] = number_or_null(e.skill_snaive);
  j["naive"] = to_json(e.naive);
  j["snaive"] = to_json(e.snaive);
  j["naive2"] = to_json(e.naive2);
  j["levels"] = nlohmann::ordered_json::array();
  for (const auto& level : e.levels)
    j["levels"].push_back({{"level", level.level},
                           {"coverage", number_or_null(level.coverage)},
                           {"pinball", number_or_null(level.pinball)}});
  j["mase_by_step"] = nlohmann::ordered_json::array();
  for (const double step : e.mase_by_step) j["mase_by_step"].push_back(number_or_null(step));
  return j;
}

void print_table(const forecast::ForecastEvaluation& e, const std::string& name) {
  const auto better = [](double skill) {
    return fmt::format("{:.1f} % {}", 100 * std::abs(skill), skill >= 0 ? "better" : "worse");
  };
  fmt::print("{} series · {} · season {} · MASE {} than naive, {} than seasonal naive\n\n", format_count(e.series),
             format_count(e.points, "point"), e.season, better(e.skill_naive), better(e.skill_snaive));
  fmt::print("{:<20} {:>10} {:>10} {:>10} {:>14} {:>10}\n", "", "sMAPE", "MASE", "OWA", "MAE", "MAPE");
  const auto row = [](const std::string& of, const forecast::Scores& s) {
    fmt::print("{:<20} {:>10.3f} {:>10.3f} {:>10.3f} {:>14.6g} {:>10.3f}\n", of, s.smape, s.mase, s.owa, s.mae, s.mape);
  };
  row(name, e.model);
  row("(naive)", e.naive);
  row("(seasonal naive)", e.snaive);
  row("(Naive2)", e.naive2);
  for (const auto& level : e.levels)
    fmt::print("{:g} % interval: covers {:.1f} % of the points, pinball loss {:.6g}\n", level.level,
               100 * level.coverage, level.pinball);
}

int run_forecast_eval(const ForecastFlags& f) {
  const ForecastSettings s = settings_of(f, f.eval_values);
  if (s.actual.empty()) fail(ErrorCode::usage, "brim forecast eval: --actual is required: the values after the data");
  if (s.model.empty() == s.forecast_file.empty())
    fail(ErrorCode::usage,
         "brim forecast eval: requires either --model (DIR, naive, snaive or naive2) or --forecast FILE");
  stop_on_signals();
  const bool quiet = f.quiet || f.json;
  const SeriesStore data = read_store(s.data, s.reader_options(), "data", quiet);
  const SeriesStore actual = read_store(s.actual, options_after(data, s.reader_options()), "actual", quiet);
  forecast::EvaluateOptions how;
  how.season = season_for(s, data.frequency());
  how.stop = &stop_requested();
  Progress progress("evaluating", STDERR_FILENO, quiet);
  how.progress = [&](int64_t done, int64_t total) {
    progress.update({static_cast<double>(done), static_cast<double>(total), format_count(done) + " series"});
  };
  forecast::Forecaster forecaster;
  NamedModel model;
  forecast::EnsembleForecasts ensemble;
  std::string name = s.model;
  if (s.model.empty()) {
    forecaster = read_forecasts(s.forecast_file, s.alias, data, s.reader_options(), &name);
  } else {
    model = open_model(s.model);
    if (!model.baseline) ensemble = ensemble_forecasts(s, model.nbeats, data, quiet);
    const auto of_quantile = [&](int64_t i, int64_t horizon, size_t quantile) {
      if (horizon > model.nbeats.horizon)
        fail(ErrorCode::bad_data, "{}: {} points after the data, but {} forecasts at most {}", s.actual[0], horizon,
             s.model, model.nbeats.horizon);
      std::vector<double> values = ensemble.of(i, quantile);
      values.resize(static_cast<size_t>(horizon));
      return values;
    };
    forecaster.values = [&, of_quantile](int64_t i, int64_t horizon) {
      if (model.baseline) return forecast_baseline(*model.baseline, data.series(i), horizon, how.season);
      return of_quantile(i, horizon, ensemble.quantiles.size() / 2);
    };
    for (const QuantileLevel& level : levels_of(ensemble.quantiles))
      forecaster.intervals.push_back({level.level,
                                      [=](int64_t i, int64_t horizon) { return of_quantile(i, horizon, level.low); },
                                      [=](int64_t i, int64_t horizon) { return of_quantile(i, horizon, level.high); }});
  }
  const forecast::ForecastEvaluation e = evaluate(data, actual, forecaster, how);
  progress.finish();
  if (f.json)
    std::cout << to_json(e, name, data).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
  else
    print_table(e, name);
  if (!quiet && e.not_in_data > 0)
    log_info("{} series of --actual are not in the data and were ignored", format_count(e.not_in_data));
  if (!quiet && e.without_scale > 0)
    log_info("{} series are excluded from MASE: their history repeats exactly from season to season",
             format_count(e.without_scale));
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
            "save_steps"});
  f->roll = add_roll(app, *f);
  f->predict = app.add_subcommand("predict", "forecast series with a trained model or a baseline");
  add_rows(*f->predict, f->predict_values, {"data", "model", "horizon", "o,output", "alias", "season", "components"});
  f->eval = app.add_subcommand("eval", "evaluate forecasts against actual values");
  add_rows(*f->eval, f->eval_values, {"data", "actual", "model", "forecast", "alias", "season"});
  f->eval->add_flag("--json", f->json, "print JSON");
  for (const auto& [verb, values] : {std::pair(f->train, &f->train_values), std::pair(f->predict, &f->predict_values),
                                     std::pair(f->eval, &f->eval_values), std::pair(f->roll, &f->roll_values)}) {
    add_rows(*verb, *values,
             {"layout", "id_column", "time_column", "target_column", "freq", "gaps", "delimiter", "device", "precision",
              "memory_limit", "leave_free", "threads"});
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
