// SPDX-License-Identifier: Apache-2.0
#include "report/forecast_run_trial.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/timeline.h"
#include "base/units.h"

namespace brim::report {

using forecast::ForecastSettings;

forecast::OnEnsembleProgress reported(const ForecastContext& context, std::string title) {
  return [&context, title = std::move(title)](const forecast::EnsembleProgress& p) {
    const int64_t done = p.wave * p.steps + p.step, total = p.waves * p.steps;
    context.observer.training_step(done, total, p.loss);
    context.observer.progress(title, static_cast<double>(done), static_cast<double>(total),
                              fmt::format("step {} of {} · loss {:.4g}", p.step, p.steps, p.loss));
  };
}

void fail_interrupted(const ForecastSettings& s) {
  fail(ErrorCode::interrupted, Remedy{"repeat the command to continue"}, "interrupted (in {})", s.output);
}

namespace {

forecast::Trial try_once(const ForecastSettings& s, const forecast::NbeatsModel& members, int64_t origins, bool combine,
                         const std::filesystem::path& state, const TrialInputs& run) {
  forecast::Trial trial = try_ensemble(
      run.on, s, run.store, members, origins, combine, run.baselines, state,
      reported(run.context, "trial without the last " + format_count(origins, "horizon")), &run.context.stop);
  run.context.observer.progress_ends();
  if (trial.interrupted) fail_interrupted(s);
  return trial;
}

// Tries other histories with the chosen number of steps, and sets the one with the lowest error.
void try_histories(ForecastSettings& s, bool combine, forecast::Trial& best, const TrialInputs& run) {
  constexpr int64_t kMostSteps = 300;  // more would take longer than the training
  if (s.max_steps > kMostSteps || best.origins < 2) return;
  double chosen = s.history_size;
  std::string tried = fmt::format("{:.3f} with {:g}", best.scores[0].error, chosen);
  for (const double history : forecast::tried_histories(chosen, s, run.store)) {
    s.history_size = history;
    forecast::Trial trial = try_once(s, ensemble_of(s, run.store), best.origins, combine,
                                     run.state / fmt::format("trial-{}-{:g}", s.max_steps, history), run);
    const double error = trial.scores[0].error;
    tried += fmt::format(", {:.3f} with {:g}", error, history);
    if (!(error < best.scores[0].error)) continue;
    best = std::move(trial);
    chosen = history;
  }
  s.history_size = chosen;
  run.context.observer.line(fmt::format(
      "history: {:g} horizons (error relative to naive: {}; set another with `history_size`)", chosen, tried));
}

// Trials with different numbers of steps. `given`: the trial of the given number is the only one.
struct TriedSteps {
  forecast::Trial best;
  int64_t steps = 0;
  std::string text;  // reason or errors of the choice
};

TriedSteps try_steps(ForecastSettings& s, bool given, int64_t origins, bool combine,
                     const forecast::NbeatsModel& members, const TrialInputs& run) {
  const int64_t most = s.max_steps;
  TriedSteps tried;
  const auto once = [&](int64_t steps) {
    s.max_steps = steps;
    return try_once(s, members, origins, combine, run.state / fmt::format("trial-{}", steps), run);
  };
  std::vector<int64_t> all = given ? std::vector{most} : forecast::tried_steps(most, origins);
  std::vector<double> errors;
  for (size_t i = 0; i < all.size(); ++i) {
    forecast::Trial trial = once(all[i]);
    errors.push_back(trial.scores[0].error);
    tried.text +=
        fmt::format("{}{:.3f} after {}", i == 0 ? "error relative to naive: " : ", ", errors[i], format_count(all[i]));
    if (i > 0 && !forecast::keeps_more_steps(errors)) break;
    tried.best = std::move(trial);
    tried.steps = all[i];
    if (!std::isfinite(errors[i])) break;
    if (all[i] == most && s.preset == forecast::Preset::fast)
      if (const int64_t further = forecast::further_steps(most, errors); further > 0) all.push_back(further);
  }
  if (origins < 2) tried.text = "too few horizons are held out for a choice; " + tried.text;
  const double error = tried.best.scores[0].error;
  if (given || std::isfinite(error)) return tried;
  tried.text = std::isinf(error) ? "the naive forecast has no error on the held-out horizons"
                                 : "the held-out horizons have no points to compare";
  const int64_t steps = forecast::tried_steps(most, 1)[0];
  if (steps != tried.steps) tried.best = once(steps);
  tried.steps = steps;
  return tried;
}

// The errors of single models and the chosen mean of several. The report page has all means.
void report_trial(const forecast::Trial& trial, bool combine, ForecastObserver& observer) {
  std::string line;
  for (const forecast::TrialScore& score : trial.scores)
    if (score.baselines.size() + (score.nbeats ? 1 : 0) == 1)
      line += fmt::format("{}{} {:.3f}", line.empty() ? "" : ", ", score.name, score.scores.mase);
  observer.line(fmt::format("held out: {} of {} series · MASE: {}", format_count(trial.origins, "horizon"),
                            format_count(trial.series), line));
  if (!combine) return;
  const forecast::TrialScore& chosen = trial.scores[trial.chosen];
  observer.line(fmt::format("forecasts: {} · MASE {:.3f} (for N-BEATS alone, set `model=nbeats`)", chosen.name,
                            chosen.scores.mase));
}

}  // namespace

forecast::Trial try_model(ForecastSettings& s, bool steps_given, bool fit_history, bool combine,
                          const forecast::NbeatsModel& members, const TrialInputs& run) {
  ForecastObserver& observer = run.context.observer;
  const int64_t origins = trial_origins(s, run.store, members.season);
  if (origins == 0) {
    if (combine && !s.model.empty())
      fail(ErrorCode::bad_data, Remedy{"provide longer series, or set a shorter `horizon`"},
           "{}: `model=auto` compares models on held-out horizons, for which the series are too short", s.data[0]);
    if (s.held_out > 0 && !steps_given) s.max_steps = forecast::tried_steps(s.max_steps, origins)[0];
    return {};
  }
  const bool traced = Timeline::enabled();
  Timeline::enable(false);  // a trace shows the training only
  TriedSteps tried = try_steps(s, steps_given, origins, combine, members, run);
  forecast::Trial& best = tried.best;
  s.max_steps = tried.steps;
  if (fit_history && !steps_given && std::isfinite(best.scores[0].error)) try_histories(s, combine, best, run);
  Timeline::enable(traced);
  report_trial(best, combine, observer);
  if (!steps_given)
    observer.line(
        fmt::format("steps: {} ({}; set another number with `max_steps`)", format_count(tried.steps), tried.text));
  return std::move(tried.best);
}

}  // namespace brim::report
