// SPDX-License-Identifier: Apache-2.0
// Reports of a rolling run as JSON and HTML (skill against the naive forecasts first, then per fold), and the page of
// an ensemble.
#pragma once
#include <optional>
#include <string>

#include "forecast/roll_score.h"
#include "forecast/trial.h"

namespace brim::report {

struct RollRecord {
  const forecast::ForecastSettings& settings;
  const forecast::SeriesStore& series;
  const forecast::NbeatsModel& members;
  const forecast::RollPlan& plan;
  const forecast::RollRun& run;
  const forecast::RollScore& score;
  std::string device, precision, alias;
  std::optional<double> busy = {};  // fraction of the training time in which the device computed
};

std::string roll_json(const RollRecord& record);
std::string roll_html(const RollRecord& record);

// Report of `brim forecast train`.
struct EnsembleRecord {
  const forecast::ForecastSettings& settings;
  const forecast::SeriesStore& series;
  const forecast::NbeatsModel& model;
  const forecast::TrainedEnsemble& trained;
  const forecast::Trial& trial;                  // no origins if none was made
  const forecast::EnsembleForecasts& forecasts;  // with components if the stacks are interpretable, else empty
  std::string device, precision;
  int64_t used_before = 0, used_after = 0;  // memory of the device in use by all programs
};
std::string ensemble_html(const EnsembleRecord& record);

// Headline with one sentence per baseline.
std::string roll_headline(const forecast::RollScore& score);

}  // namespace brim::report
