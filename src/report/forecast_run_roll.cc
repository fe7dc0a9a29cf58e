// SPDX-License-Identifier: Apache-2.0
// Rolling backtests: refits an ensemble repeatedly along the series and evaluates its forecasts. Single fits are in
// forecast_run_train.cc.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/timeline.h"
#include "base/units.h"
#include "forecast/forecast_file.h"
#include "forecast/roll.h"
#include "io/atomic_file.h"
#include "report/forecast_run.h"
#include "report/forecast_run_trial.h"
#include "report/roll_report.h"

namespace brim::report {
namespace {

using forecast::ForecastSettings;
using forecast::SeriesStore;

// The directory must be new, empty, or hold a run of this kind.
std::filesystem::path state_in(const std::string& output) {
  std::filesystem::path state = std::filesystem::path(output) / "state";
  std::error_code ec;
  if (std::filesystem::exists(output, ec) && !std::filesystem::is_directory(output, ec))
    fail(ErrorCode::cannot_write, Remedy{"set a directory as `output`"}, "{}: is a file", output);
  if (std::filesystem::exists(output, ec) && !std::filesystem::is_empty(output, ec) &&
      !std::filesystem::is_directory(state, ec))
    fail(ErrorCode::cannot_write, Remedy{"set another directory as `output`"}, "{}: not a rolling run", output);
  return state;
}

forecast::RollScore write_forecasts(const ForecastSettings& s, const SeriesStore& store,
                                    const forecast::NbeatsModel& members, const forecast::RollPlan& plan,
                                    const forecast::RollRun& run, const std::string& alias, ForecastRows* rows,
                                    const std::atomic<bool>& stop) {
  std::vector<std::string> columns = {"y", alias};
  for (const double level : interval_levels(s))
    for (const char* bound : {"lo", "hi"}) columns.push_back(fmt::format("{}-{}-{:g}", alias, bound, level));
  forecast::ForecastWriter writer((std::filesystem::path(s.output) / "forecasts.csv").string(), columns, &stop, true);
  if (rows != nullptr) rows->begin(columns);
  std::vector<double> values;
  forecast::RollScore score =
      score_roll(s, store, members, plan, run, [&](const forecast::Fold&, const forecast::RolledForecast& f) {
        const std::string cutoff = store.time_text(f.series, f.known - 1);
        for (size_t h = 0; h < f.forecast.size(); ++h) {
          values = {static_cast<double>(f.actual[h]), f.forecast[h]};
          for (size_t l = 0; l < f.low.size(); ++l) values.insert(values.end(), {f.low[l][h], f.high[l][h]});
          const std::string time = store.time_text(f.series, f.known + static_cast<int64_t>(h));
          writer.write(store.id(f.series), time, values, cutoff);
          if (rows != nullptr) rows->write(store.id(f.series), time, values, cutoff);
        }
      });
  writer.commit();
  return score;
}

std::string rolled_text(const ForecastSettings& s, const forecast::RollRun& run, const forecast::RollScore& score) {
  return fmt::format(
      "MASE {:.3f}, naive {:.3f}, seasonal naive {:.3f} · {} in {:.1f} s{} · {} of {} planned in {} · {}",
      score.model.mase, score.naive.mase, score.snaive.mase,
      format_count(static_cast<int64_t>(run.lanes.size()), "lane"), run.seconds,
      run.resumed_lanes > 0 ? fmt::format(" ({} resumed)", format_count(run.resumed_lanes)) : "",
      format_bytes(run.memory.peak_bytes), format_bytes(run.memory.limit_bytes), format_count(run.memory.waves, "wave"),
      s.output);
}

void write_reports(const RollRecord& record) {
  const std::filesystem::path output = record.settings.output;
  io::write_file_atomically(output / "roll.json", roll_json(record));
  io::write_file_atomically(output / "report.html", roll_html(record));
}

std::optional<int64_t> first_cutoff_of(const ForecastSettings& s) {
  const std::filesystem::path state = state_in(s.output);
  if (!s.extend) return std::nullopt;
  const auto first = forecast::rolled_first_cutoff(state);
  if (!first) fail(ErrorCode::usage, Remedy{"omit `extend` to start a run"}, "`extend`: {} contains no run", s.output);
  return first;
}

std::string start_text(const ForecastSettings& s, const forecast::RollPlan& plan, int64_t lanes,
                       forecast::EnsembleDevice& on) {
  return fmt::format("{} · {} of {} · {} of {} · warm start: {} · {} · {}",
                     format_count(static_cast<int64_t>(plan.folds.size()), "fold"),
                     format_count(static_cast<int64_t>(plan.trainings.size()), "training"), format_count(lanes, "lane"),
                     format_count(plan.steps, "step"), format_count(s.windows_per_step(), "window"),
                     warm_start_name(s.warm), on.device().name(), precision_name(on.precision()));
}

// The series up to the first training, without those that begin later.
SeriesStore known_series(const SeriesStore& store, const std::vector<int64_t>& known) {
  std::vector<SeriesStore::Head> heads;
  for (int64_t i = 0; i < store.size(); ++i)
    if (known[static_cast<size_t>(i)] > 0) heads.push_back({i, known[static_cast<size_t>(i)]});
  return store.heads(heads);
}

// Chooses lookbacks, history and steps that are not given: those of the run to continue, otherwise by trials on the
// points before the first training. A continued run without a number of steps has epochs.
void choose_roll_settings(ForecastSettings& s, const SeriesStore& store, std::optional<int64_t> first_cutoff,
                          forecast::EnsembleDevice& on, const ForecastContext& context) {
  const std::filesystem::path state = state_in(s.output);
  const bool begun = take_rolled_settings(s, state), steps_given = s.max_steps > 0 || s.epochs > 0;
  const std::vector<int64_t> known = known_at_first_training(s, store, first_cutoff);
  const bool fits_history = choose_settings(s, store, known, context.observer);
  if (begun || steps_given) return;
  const SeriesStore past = known_series(store, known);
  forecast::TrialBaselines baselines;
  try_model(s, steps_given, fits_history, false, ensemble_of(s, past), {past, on, state, context, baselines});
  // The run keeps the choice, and the lanes of trials may be large.
  std::error_code ec;
  for (const auto& entry : std::filesystem::directory_iterator(state, ec))
    if (entry.path().filename().string().starts_with("trial-")) std::filesystem::remove_all(entry.path(), ec);
}

}  // namespace

RolledText roll_forecaster(ForecastSettings s, ForecastRows* rows, const ForecastContext& context) {
  ForecastObserver& observer = context.observer;
  if (s.horizon == 0) fail(ErrorCode::usage, Remedy{"set `horizon=12`"}, "`horizon` is required");
  if (s.output.empty()) fail(ErrorCode::usage, Remedy{"set `output=DIR`"}, "`output` is required");
  const std::optional<int64_t> first_cutoff = first_cutoff_of(s);
  if (s.folds == 0 && !s.extend) fail(ErrorCode::usage, Remedy{"set `folds=3`"}, "`folds` is required");
  const SeriesStore store = read_store(s.data, s.reader_options(), "data", context);
  forecast::EnsembleDevice on(s);
  observer.opened("forecast roll", s, on);
  choose_roll_settings(s, store, first_cutoff, on, context);
  const forecast::NbeatsModel members = ensemble_of(s, store);
  const forecast::RollPlan plan = plan_roll(s, store, members, first_cutoff);
  observer.line(start_text(s, plan, static_cast<int64_t>(members.lanes.size()), on));
  observer.training_begins(on);
  const forecast::RollRun run = run_roll(
      on, s, store, members, plan, state_in(s.output),
      [&](const forecast::RollProgress& p) {
        const double share = static_cast<double>(p.step) / static_cast<double>(p.steps);
        observer.training_step(p.lanes_done * p.steps + p.step * p.wave_lanes, p.lanes * p.steps, p.loss);
        observer.progress("rolling", static_cast<double>(p.lanes_done) + share * static_cast<double>(p.wave_lanes),
                          static_cast<double>(p.lanes),
                          fmt::format("{} of {} lanes · step {} of {} · loss {:.4g}", p.lanes_done, p.lanes, p.step,
                                      p.steps, p.loss));
      },
      &context.stop);
  observer.progress_ends();
  if (run.interrupted)
    fail(ErrorCode::interrupted, Remedy{"repeat the command to continue"}, "interrupted (in {})", s.output);
  auto writing = std::make_unique<ScopedZone>(Zone::write);
  const std::string alias = s.alias.empty() ? "NBEATS" : s.alias;
  const forecast::RollScore score = write_forecasts(s, store, members, plan, run, alias, rows, context.stop);
  std::optional<double> busy;  // unknown if nothing was trained
  if (run.seconds > 0) busy = std::min(1.0, run.busy_seconds / run.seconds);
  write_reports({s, store, members, plan, run, score, on.device().name(), precision_name(on.precision()), alias, busy});
  writing.reset();
  observer.training_ends({"forecast roll", s, store, members, run.memory, static_cast<int64_t>(run.lanes.size()),
                          plan.steps, run.resumed_lanes > 0},
                         on);
  return {roll_headline(score), rolled_text(s, run, score)};
}

}  // namespace brim::report
