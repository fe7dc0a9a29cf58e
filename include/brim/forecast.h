// SPDX-License-Identifier: Apache-2.0
// Forecasts of time series in files, with N-BEATS ensembles and statistical baselines. Like the subcommands of
// `brim forecast`, with the same settings.
//
//   brim::ForecastListener quiet;
//   brim::Forecasts next = brim::predict_series({{{"data", "sales.csv"}, {"model", "ets"}, {"horizon", "12"}}}, quiet);
#pragma once
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "brim/error.h"

namespace brim {

struct ForecastSpec {
  // Names and values as listed in docs/reference/flags.md; settings with several values (`data`) are repeated.
  std::vector<std::pair<std::string, std::string>> settings;
};

// Called on the thread of the run; must not block.
class BRIM_API ForecastListener {
 public:
  virtual ~ForecastListener();
  virtual void progress(double done, double total, std::string_view text);
  virtual void line(std::string_view text);  // human-readable
};

struct Forecasts {
  std::vector<std::string> ids, times;
  std::vector<std::string> cutoffs;  // backtests only
  std::vector<std::string> columns;
  std::vector<std::vector<double>> values;  // by column
};

// Trains an ensemble and writes it to `output`. The same call continues an interrupted run.
BRIM_API void train_forecaster(const ForecastSpec& spec, ForecastListener& listener, std::stop_token stop = {});

// Forecasts with a trained model or a baseline.
BRIM_API Forecasts predict_series(const ForecastSpec& spec, ForecastListener& listener, std::stop_token stop = {});

// Backtest: retrains along the series and forecasts from every cutoff. Reports are written to `output`.
BRIM_API Forecasts roll_forecaster(const ForecastSpec& spec, ForecastListener& listener, std::stop_token stop = {});

// Scores forecasts against actual values; returns the JSON of `brim forecast eval --json`.
BRIM_API std::string evaluate_forecasts(const ForecastSpec& spec, ForecastListener& listener,
                                        std::stop_token stop = {});

}  // namespace brim
