// SPDX-License-Identifier: Apache-2.0
// Runs of forecasting on series from files: training, forecasts, backtests and evaluation, with their reports. Used by
// `brim forecast` and by include/brim/forecast.h; does not print.
#pragma once
#include <atomic>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "forecast/ensemble.h"
#include "forecast/evaluate.h"
#include "forecast/series_store.h"
#include "forecast/settings.h"

namespace brim::report {

// Work of a finished training, for its trace.
struct ForecastWork {
  const char* command;
  const forecast::ForecastSettings& settings;
  const forecast::SeriesStore& series;
  const forecast::NbeatsModel& members;
  const forecast::EnsemblePlan& plan;
  int64_t lanes = 0, steps = 0;
  bool resumed = false;
};

// Called on the thread of the run; must not block.
class ForecastObserver {
 public:
  virtual ~ForecastObserver() = default;
  virtual void progress(const std::string& /*title*/, double /*done*/, double /*total*/, const std::string& /*text*/) {}
  virtual void progress_ends() {}
  virtual void note(const std::string& /*text*/) {}  // about settings and data
  virtual void line(const std::string& /*text*/) {}  // about results
  virtual void opened(const char* /*command*/, const forecast::ForecastSettings& /*settings*/,
                      forecast::EnsembleDevice& /*on*/) {}
  virtual void training_begins(forecast::EnsembleDevice& /*on*/) {}
  virtual void training_step(int64_t /*step*/, int64_t /*steps*/, double /*loss*/) {}
  virtual void training_ends(const ForecastWork& /*work*/, forecast::EnsembleDevice& /*on*/) {}
};

// `stop` ends a run with an `interrupted` error, as early as possible.
struct ForecastContext {
  ForecastObserver& observer;
  const std::atomic<bool>& stop;
};

// One row per point: `values` of the columns, `cutoff` of backtests only.
class ForecastRows {
 public:
  virtual ~ForecastRows() = default;
  virtual void begin(const std::vector<std::string>& columns) = 0;
  virtual void write(std::string_view id, std::string_view time, std::span<const double> values,
                     std::string_view cutoff) = 0;
};

enum class ForecastCommand : uint8_t { train, predict, roll, eval };
std::vector<std::string_view> setting_names(ForecastCommand command);

using ForecastValues = std::map<std::string, std::vector<std::string>>;
// Applies YAML keys, then settings of this command with their values, and checks them; the data must be given. Values
// replace those of the file, also for keys that may be repeated.
forecast::ForecastSettings read_forecast_settings(ForecastCommand command, const std::string& config,
                                                  const ForecastValues& values, ForecastObserver& observer);

// Chooses the settings that are not given: by the number, lengths and frequency of the series, then by the preset.
// `known`: points of each series that the choice may use; empty: all. Returns whether the history was chosen.
bool choose_settings(forecast::ForecastSettings& settings, const forecast::SeriesStore& series,
                     std::vector<int64_t> known, ForecastObserver& observer);

forecast::SeriesStore read_store(const std::vector<std::string>& paths, rows::SeriesReaderOptions options,
                                 const std::string& title, const ForecastContext& context);

// Trains an ensemble and writes it with its report to `output`. An interrupted run is continued.
void train_forecaster(forecast::ForecastSettings settings, const ForecastContext& context);

// Forecasts with a baseline or a trained model; also writes `plot`, if given.
struct PredictedSeries {
  int64_t series = 0, horizon = 0;
};
PredictedSeries predict_series(const forecast::ForecastSettings& settings, ForecastRows& rows,
                               const ForecastContext& context);

// Refits an ensemble along the series; writes forecasts and reports to `output`. `rows` gets the forecasts, unless
// null.
struct RolledText {
  std::string headline, figures;
};
RolledText roll_forecaster(forecast::ForecastSettings settings, ForecastRows* rows, const ForecastContext& context);

struct EvaluatedForecasts {
  forecast::ForecastEvaluation figures;
  std::string name, frequency;
};
EvaluatedForecasts evaluate_forecasts(const forecast::ForecastSettings& settings, const ForecastContext& context);
std::string evaluation_json(const EvaluatedForecasts& evaluated);

// Reads the covariates that a model was trained with. Throws usage if the settings name others.
rows::SeriesReaderOptions reader_options_for(const forecast::ForecastSettings& settings, const std::string& name,
                                             const forecast::CovariateSpec& trained);

}  // namespace brim::report
