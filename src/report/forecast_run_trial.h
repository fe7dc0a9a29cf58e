// SPDX-License-Identifier: Apache-2.0
// Trials before a training: choice of steps and history on held-out horizons, with messages. Shared by single and
// rolling trainings; the trial itself is in forecast/trial.h.
#pragma once
#include <filesystem>
#include <string>

#include "forecast/trial.h"
#include "report/forecast_run.h"

namespace brim::report {

// Reports the steps of a training as progress under a title.
forecast::OnEnsembleProgress reported(const ForecastContext& context, std::string title);

[[noreturn]] void fail_interrupted(const forecast::ForecastSettings& settings);

// Data, device, directory of checkpoints and observer of trials, and the forecasts that they share.
struct TrialInputs {
  const forecast::SeriesStore& store;
  forecast::EnsembleDevice& on;
  const std::filesystem::path& state;
  const ForecastContext& context;
  forecast::TrialBaselines& baselines;
};

// Trains on the series without their last horizons, to learn the errors of the model. Unless the number of steps is
// given, fewer steps are tried first, and the number with the lowest error is set; with `fit_history`, the history too.
// Series too short to hold out a horizon get a fifth of the steps, and a trial without origins is returned.
forecast::Trial try_model(forecast::ForecastSettings& settings, bool steps_given, bool fit_history, bool combine,
                          const forecast::NbeatsModel& members, const TrialInputs& run);

}  // namespace brim::report
