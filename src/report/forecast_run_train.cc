// SPDX-License-Identifier: Apache-2.0
// Training of ensembles on series from files. Forecasts and evaluation are in forecast_run_predict.cc, rolling
// backtests in forecast_run_roll.cc.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/error.h"
#include "base/log.h"
#include "base/timeline.h"
#include "base/units.h"
#include "forecast/trial.h"
#include "io/atomic_file.h"
#include "report/forecast_run.h"
#include "report/forecast_run_trial.h"
#include "report/roll_report.h"
#include "train/disk_space.h"

namespace brim::report {

using forecast::ForecastSettings;
using forecast::SeriesStore;

SeriesStore read_store(const std::vector<std::string>& paths, rows::SeriesReaderOptions options,
                       const std::string& title, const ForecastContext& context) {
  options.progress = [&](int64_t done, int64_t total) {
    context.observer.progress(title, static_cast<double>(done), static_cast<double>(total), format_bytes(done));
  };
  options.stop = &context.stop;
  SeriesStore store(rows::read_series(paths, options));
  context.observer.progress_ends();
  for (const std::string& note : store.notes()) context.observer.note(title + ": " + note);
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
         "{}: trained with {}, but the settings name {}", name, own, given);
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
  return text + fmt::format(
                    "\nTo forecast, run `brim forecast predict`, or in Python `brim.forecast.predict(\"FILE\", "
                    "model=\"{}\")`.\n",
                    s.output);
}

// Whether to combine N-BEATS with baselines: by default if horizons are held out to choose by, but not if quantiles are
// asked for, which are those of N-BEATS alone. A continued model keeps its combination.
bool combines(const ForecastSettings& s) {
  if (s.model == "nbeats") return false;
  if (s.model == "auto") return true;
  if (s.model.empty())
    return s.from.empty() && s.held_out > 0 &&
           std::find(s.losses.begin(), s.losses.end(), ops::ForecastLoss::quantile) == s.losses.end();
  if (forecast::baseline_of(s.model))
    fail(ErrorCode::usage, Remedy{fmt::format("forecast with it: `brim forecast predict model={}`", s.model)},
         "`model={}`: baselines need no training", s.model);
  fail(ErrorCode::usage, Remedy{"use nbeats or auto"}, "`model={}`: unknown", s.model);
}

void keep_trial(const forecast::Trial& trial, bool combine, forecast::NbeatsModel& model) {
  constexpr size_t kKeptErrors = 199;  // allows levels up to 99.5 %
  if (trial.origins == 0) return;
  if (combine) {
    const forecast::TrialScore& chosen = trial.scores[trial.chosen];
    if (chosen.nbeats) model.combined.emplace_back("nbeats");
    for (const forecast::Baseline b : chosen.baselines) model.combined.emplace_back(baseline_name(b));
  }
  if (!model.quantiles.empty() && !model.has_baselines()) return;  // the quantiles are the intervals
  for (size_t h = 0; h < static_cast<size_t>(model.horizon); ++h)
    model.held_out.push_back(trial.errors.sizes(h, kKeptErrors));
}

// The directory must be new, empty, or hold an interrupted training.
void check_output(const ForecastSettings& s) {
  if (s.output.empty()) fail(ErrorCode::usage, Remedy{"set `output=DIR`"}, "`output` is required");
  const std::filesystem::path output = s.output;
  std::error_code ec;
  const bool begun =
      std::filesystem::is_directory(output / "state", ec) && !std::filesystem::exists(output / "config.json", ec);
  if (std::filesystem::exists(output, ec) && !std::filesystem::is_empty(output, ec) && !begun)
    fail(ErrorCode::cannot_write, Remedy{"set another directory as `output`"}, "{}: not empty", s.output);
}

// The model is written after the training, which a full disk would waste.
void require_disk_space(const ForecastSettings& s, const forecast::NbeatsModel& model) {
  train::DiskNeed need;
  for (const forecast::NbeatsLane& lane : model.lanes)
    need.model_bytes += 4 * nbeats_layout(lane_shape(model, lane)).elements;  // written as f32
  std::error_code ec;
  std::filesystem::path dir = std::filesystem::absolute(s.output, ec);  // created later
  while (dir.has_relative_path() && !std::filesystem::exists(dir, ec)) dir = dir.parent_path();
  train::check_disk_space(dir, need);
}

// The model given with `from`, whose shape the settings take.
forecast::NbeatsModel open_base(ForecastSettings& s) {
  std::error_code ec;
  if (!std::filesystem::is_directory(s.from, ec))
    fail(ErrorCode::usage, Remedy{"use a directory written by `brim forecast train`"}, "`from={}`: not a directory",
         s.from);
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

std::string trained_text(const ForecastSettings& s, int64_t lanes, int64_t steps,
                         const forecast::TrainedEnsemble& trained) {
  return fmt::format(
      "{} in {:.1f} s · {:.2f} ms per lane and step · device busy {:.0f} %{} · {} of {} planned in {} · model in {}",
      format_count(lanes, "lane"), trained.seconds, trained.seconds * 1e3 / static_cast<double>(lanes * steps),
      100 * std::min(1.0, trained.busy_seconds / std::max(1e-9, trained.seconds)),
      s.target_utilization > 0 ? fmt::format(" (target {:g} %)", s.target_utilization) : "",
      format_bytes(trained.plan.peak_bytes), format_bytes(trained.plan.limit_bytes),
      format_count(trained.plan.waves, "wave"), s.output);
}

// A training after its settings and data were read.
struct TrainRun {
  ForecastSettings& s;
  const SeriesStore& store;
  forecast::NbeatsModel& model;
  const forecast::Trial& trial;
  bool combine;
  int64_t used_before;
};

void save_trained(const TrainRun& run, const forecast::TrainedEnsemble& trained, int64_t steps,
                  forecast::EnsembleDevice& on) {
  const ForecastSettings& s = run.s;
  const std::filesystem::path output = s.output;
  const ScopedZone writing(Zone::write);
  save_nbeats(s.output, run.model);
  io::write_file_atomically(output / "README.md", card_text(s, run.model, run.store, trained, steps));
  const forecast::EnsembleForecasts shown = forecasts_of_stacks(on, run.model, run.store);
  io::write_file_atomically(output / "report.html",
                            ensemble_html({s, run.store, run.model, trained, run.trial, shown, on.device().name(),
                                           precision_name(on.precision()), run.used_before, used_memory(on)}));
  std::error_code ec;
  std::filesystem::remove_all(output / "state", ec);
}

// Trains the lanes and saves the model.
void train_lanes(const TrainRun& run, forecast::EnsembleDevice& on, const ForecastContext& context) {
  ForecastSettings& s = run.s;
  const forecast::NbeatsModel members = run.model;
  const auto lanes = static_cast<int64_t>(members.lanes.size());
  const int64_t steps = steps_of(s, run.store);
  context.observer.line(fmt::format("{} of {} · {} of {} · {} · {}", format_count(lanes, "lane"),
                                    format_count(lane_shape(members, members.lanes[0]).blocks(), "block"),
                                    format_count(steps, "step"), format_count(s.windows_per_step(), "window"),
                                    on.device().name(), precision_name(on.precision())));
  context.observer.training_begins(on);
  const forecast::TrainedEnsemble trained =
      train_ensemble(on, s, run.store, run.model, std::filesystem::path(s.output) / "state",
                     reported(context, "training"), &context.stop);
  context.observer.progress_ends();
  if (trained.interrupted) fail_interrupted(s);
  keep_trial(run.trial, run.combine, run.model);
  save_trained(run, trained, steps, on);
  context.observer.training_ends(
      {"forecast train", s, run.store, members, trained.plan, lanes, steps, trained.resumed_lanes > 0}, on);
  if (const int64_t failed = lanes - static_cast<int64_t>(run.model.lanes.size()); failed > 0)
    log_warning("{} of {} lanes failed (gradients were not finite) and were dropped", failed, lanes);
  context.observer.line(trained_text(s, lanes, steps, trained));
}

}  // namespace

void train_forecaster(ForecastSettings s, const ForecastContext& context) {
  const bool continued = !s.from.empty();
  forecast::NbeatsModel base;
  if (continued) base = open_base(s);
  const bool combine = combines(s);
  if (combine && s.held_out == 0)
    fail(ErrorCode::usage, Remedy{"set `held_out=2`"}, "`model=auto` requires held-out horizons");
  if (s.horizon == 0) fail(ErrorCode::usage, Remedy{"set `horizon=12`"}, "`horizon` is required");
  check_output(s);
  const std::filesystem::path state = std::filesystem::path(s.output) / "state";
  const SeriesStore store = read_store(
      s.data, continued ? reader_options_for(s, s.from, base.covariates) : s.reader_options(), "data", context);
  const bool steps_given = s.max_steps > 0 || s.epochs > 0;
  const bool fits_history = choose_settings(s, store, {}, context.observer);
  if (continued && !steps_given) s.max_steps = std::max<int64_t>(1, s.max_steps / kFurtherShare);
  if (continued) log_unknown_categories(base.covariates, store);
  forecast::NbeatsModel model = continued ? continued_ensemble(s, store, std::move(base)) : ensemble_of(s, store);
  require_disk_space(s, model);
  forecast::EnsembleDevice on(s);
  const int64_t used_before = used_memory(on);
  context.observer.opened("forecast train", s, on);
  // The base may have seen the last horizons of the series; its own held-out errors stay valid.
  forecast::Trial trial;
  if (!continued) {
    forecast::TrialBaselines baselines;
    trial = try_model(s, steps_given, fits_history, combine, model, {store, on, state, context, baselines});
    model = ensemble_of(s, store);
    if (trial.origins == 0 && s.held_out > 0)
      context.observer.note("the series are too short to hold out a horizon: the model cannot forecast intervals");
  }
  train_lanes({s, store, model, trial, combine, used_before}, on, context);
}

}  // namespace brim::report
