// SPDX-License-Identifier: Apache-2.0
// brim forecast: flags and output of its subcommands. The runs are in report/forecast_run.h.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <iostream>

#include "base/error.h"
#include "base/log.h"
#include "base/units.h"
#include "cli/forecast_verbs.h"
#include "cli/verb.h"
#include "forecast/forecast_file.h"
#include "io/atomic_file.h"
#include "report/forecast_report.h"
#include "rows/file_checks.h"

namespace brim::cli {
namespace {

using Command = report::ForecastCommand;

// Writes forecasts to a file or stdout.
class ForecastFile final : public report::ForecastRows {
 public:
  explicit ForecastFile(std::string path) : path_(std::move(path)) {}
  void begin(const std::vector<std::string>& columns) override { writer_.emplace(path_, columns, &stop_requested()); }
  void write(std::string_view id, std::string_view time, std::span<const double> values, std::string_view) override {
    writer_->write(id, time, values);
  }
  void commit() { writer_->commit(); }

 private:
  const std::string path_;
  std::optional<forecast::ForecastWriter> writer_;
};

int run_train(const ForecastFlags& f) {
  ForecastTerminal terminal(f.quiet, f.trace);
  const auto settings = report::read_forecast_settings(Command::train, f.config, f.train_values, terminal);
  stop_on_signals();
  report::train_forecaster(settings, {terminal, stop_requested()});
  return 0;
}

int run_roll(const ForecastFlags& f) {
  ForecastTerminal terminal(f.quiet, f.trace);
  const auto settings = report::read_forecast_settings(Command::roll, f.config, f.roll_values, terminal);
  stop_on_signals();
  const report::RolledText text = report::roll_forecaster(settings, nullptr, {terminal, stop_requested()});
  if (!f.quiet) fmt::print("{}\n", text.headline);
  terminal.line(text.figures);
  return 0;
}

int run_predict(const ForecastFlags& f) {
  ForecastTerminal terminal(f.quiet, "");
  const auto s = report::read_forecast_settings(Command::predict, f.config, f.predict_values, terminal);
  const std::string output = s.output.empty() ? "-" : s.output;
  rows::refuse_output_over_input(output, rows::series_files(s.data));
  rows::refuse_foreign_output(output);
  if (output != "-") io::require_writable(output);
  stop_on_signals();
  ForecastFile file(output);
  const report::PredictedSeries predicted = report::predict_series(s, file, {terminal, stop_requested()});
  file.commit();
  terminal.line(fmt::format("{} series × {} in {}{}", format_count(predicted.series),
                            format_count(predicted.horizon, "point"), output == "-" ? "stdout" : output,
                            s.plot.empty() ? "" : ", plots in " + s.plot));
  return 0;
}

void print_table(const forecast::ForecastEvaluation& e, const std::string& name) {
  const forecast::BaselineScore& best = e.baselines[e.best];
  fmt::print("{} series · {} · season {}\n", format_count(e.series), format_count(e.points, "point"), e.season);
  fmt::print("{}\n\n", report::skill_sentence(forecast::skill(e.model.mase, best.scores.mase), best.test.p_value,
                                              fmt::format("{}, the best baseline", baseline_title(best.baseline))));
  fmt::print("{:<20} {:>10} {:>10} {:>10} {:>14} {:>10}\n", "", "sMAPE", "MASE", "OWA", "MAE", "MAPE");
  const auto row = [](const std::string& of, const forecast::Scores& s) {
    fmt::print("{:<20} {:>10.3f} {:>10.3f} {:>10.3f} {:>14.6g} {:>10.3f}\n", of, s.smape, s.mase, s.owa, s.mae, s.mape);
  };
  row(name, e.model);
  for (const forecast::BaselineScore& b : e.baselines) row(fmt::format("({})", baseline_title(b.baseline)), b.scores);
  for (const auto& level : e.levels)
    fmt::print("{:g} % interval: covers {:.1f} % of the points, pinball loss {:.6g}\n", level.level,
               100 * level.coverage, level.pinball);
  if (!e.levels.empty()) fmt::print("CRPS {:.6g}, scaled {:.4f}\n", e.crps, e.scaled_crps);
}

int run_eval(const ForecastFlags& f) {
  ForecastTerminal terminal(f.quiet || f.json, "");
  const auto s = report::read_forecast_settings(Command::eval, f.config, f.eval_values, terminal);
  stop_on_signals();
  const report::EvaluatedForecasts evaluated = report::evaluate_forecasts(s, {terminal, stop_requested()});
  const forecast::ForecastEvaluation& e = evaluated.figures;
  if (f.json)
    std::cout << evaluation_json(evaluated) << "\n";
  else
    print_table(e, evaluated.name);
  if (e.not_in_data > 0)
    terminal.note(
        fmt::format("{} series of --actual are not in the data and were ignored", format_count(e.not_in_data)));
  if (e.without_scale > 0)
    terminal.note(fmt::format("{} series are excluded from MASE: their history repeats exactly from season to season",
                              format_count(e.without_scale)));
  return 0;
}

}  // namespace

void add_rows(CLI::App& app, FlagValues& values, const std::vector<std::string_view>& names) {
  static const std::vector<SettingInfo> infos = forecast::forecast_settings().infos();
  for (const std::string_view name : names) {
    const SettingInfo* info = train::find_info(infos, name);
    BRIM_CHECK(info != nullptr, "no setting {}", name);
    add_kept_flag(app, *info, values, Spelling::dashes, name == "output" ? "o" : "");
  }
}

std::function<int()> setup_forecast(CLI::App& app) {
  auto f = std::make_shared<ForecastFlags>();
  f->train = app.add_subcommand("train", "train an ensemble of N-BEATS models");
  f->roll = app.add_subcommand("roll", "backtest: retrain along the series and forecast from every cutoff");
  f->roll->alias("backtest");
  f->predict = app.add_subcommand("predict", "forecast series with a trained model or a baseline");
  f->eval = app.add_subcommand("eval", "evaluate forecasts against actual values");
  f->eval->add_flag("--json", f->json, "print JSON");
  for (const auto& [verb, values, command] :
       {std::tuple(f->train, &f->train_values, Command::train),
        std::tuple(f->predict, &f->predict_values, Command::predict),
        std::tuple(f->eval, &f->eval_values, Command::eval), std::tuple(f->roll, &f->roll_values, Command::roll)}) {
    add_rows(*verb, *values, report::setting_names(command));
    verb->add_option("--config", f->config, "YAML file with these flags as keys");
    if (verb == f->train || verb == f->roll)
      verb->add_option("--trace", f->trace, "write a timeline of the run to this file (open it in ui.perfetto.dev)");
    verb->add_flag("-q,--quiet", f->quiet, "print no progress and no summary");
    add_environment(*verb);
  }
  app.require_subcommand(1);
  return [f] {
    if (f->train->parsed()) return run_train(*f);
    if (f->roll->parsed()) return run_roll(*f);
    return f->predict->parsed() ? run_predict(*f) : run_eval(*f);
  };
}

}  // namespace brim::cli
