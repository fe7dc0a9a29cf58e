// SPDX-License-Identifier: Apache-2.0
// Trial of an ensemble before its training: the same lanes are trained without the last horizons of the series and
// compared with baselines on them. Gives the widths of prediction intervals and the models to combine.
#pragma once
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "forecast/ensemble.h"
#include "forecast/evaluate.h"
#include "forecast/held_out.h"

namespace brim::forecast {

// One model, or the mean of several, on the held-out horizons.
struct TrialScore {
  std::string name;                 // "N-BEATS", "mean of N-BEATS and ETS"
  bool nbeats = false;              // takes part in the mean
  std::vector<Baseline> baselines;  // take part in the mean
  Scores scores;                    // means over origins and series; no OWA
  std::vector<double> mase;         // by origin, the latest first
  double error = 0;                 // relative_error() to the last value
};

// A series at the latest origin, for plots.
struct TrialForecast {
  const char* which;  // "Best", "Median" or "Worst"
  int64_t series;
  int64_t known;
  double mase;
  std::vector<double> forecast;
  std::vector<float> actual;
};

struct Trial {
  int64_t origins = 0;  // 0: the series are too short
  int64_t series = 0;   // at the latest origin
  double seconds = 0;
  bool interrupted = false;
  std::vector<TrialScore> scores;  // N-BEATS first
  size_t chosen = 0;               // index in `scores`; 0 unless models are combined
  ConformalIntervals errors{0};    // errors of the chosen one
  std::vector<TrialForecast> shown;
};

// Mean of sMAPE and MASE, each divided by that of the last value. If the last value is exact, 1 for exact forecasts and
// infinite for others. NaN if neither is defined.
double relative_error(const Scores& scores, const Scores& naive);

// Number of horizons to hold out if all series are long enough: settings.held_out if it is given. Otherwise, long
// series hold out more than the default: 4, or for few series enough for about 100 forecasts, but at most a tenth of
// their points.
int64_t wanted_origins(const ForecastSettings& settings, const SeriesStore& series, int64_t horizon);

// Number of horizons to hold out: at most wanted_origins(), and only as many as leave enough points in half of the
// series.
int64_t trial_origins(const ForecastSettings& settings, const SeriesStore& series, int64_t season);

// Sets the history, unless it is given, to about 50,000 windows: small sets need more than their last windows, and
// large ones of slow frequencies fewer. Depends on the number of series, not on their lengths, so that a rolling run
// can be extended. Returns whether it has set it. Call before apply_preset().
bool fit_history(ForecastSettings& settings, const SeriesStore& series);

// Sets shorter lookbacks than those of the `fast` preset for short series, unless they are given: inputs should not
// begin before most of the series. `lengths`: known points by series. Returns whether it has set them. Call before
// apply_preset().
bool fit_lookbacks(ForecastSettings& settings, const rows::Frequency& frequency, std::vector<int64_t> lengths);

// Numbers of steps to try, ascending: those of the settings, and a fifth to a fiftieth of them. With fewer than two
// held-out horizons a fifth only, because one horizon is not enough to compare them.
std::vector<int64_t> tried_steps(int64_t steps, int64_t origins);

// Whether the last of the tried numbers of steps is used rather than a smaller one. `errors`: by number, ascending.
// Small differences between errors are often noise, so more steps are used unless they lose more than 15 % of the skill
// over the naive forecast, whose error is 1.
bool keeps_more_steps(const std::vector<double>& errors);

// Number of steps to try beyond `steps`, the last of the tried numbers: about three times as many if the error still
// falls clearly, otherwise 0.
int64_t further_steps(int64_t steps, const std::vector<double>& errors);

// Histories to try besides `first`, in horizons: those that give other windows.
std::vector<double> tried_histories(double first, const ForecastSettings& settings, const SeriesStore& series);

// Forecasts of all baselines by origin, model, series and step. Trials of the same series share them.
using TrialBaselines = std::map<int64_t, std::vector<std::vector<std::vector<double>>>>;

// Trains on the series without their last `origins` horizons. `members` describes the lanes and stays untrained. With
// `combine`, the mean of models with the lowest error is chosen, otherwise N-BEATS. Resumes like train_ensemble().
Trial try_ensemble(EnsembleDevice& on, const ForecastSettings& settings, const SeriesStore& series,
                   const NbeatsModel& members, int64_t origins, bool combine, TrialBaselines& baselines,
                   const std::filesystem::path& state, const OnEnsembleProgress& progress,
                   const std::atomic<bool>* stop);

}  // namespace brim::forecast
