// SPDX-License-Identifier: Apache-2.0
// A rolling run as JSON and as a page (what it is worth against the naive forecasts first, then fold by fold), and the
// page of an ensemble.
#pragma once
#include <string>

#include "forecast/roll_score.h"

namespace brim::report {

struct RollRecord {
  const forecast::ForecastSettings& settings;
  const forecast::SeriesStore& series;
  const forecast::NbeatsModel& members;
  const forecast::RollPlan& plan;
  const forecast::RollRun& run;
  const forecast::RollScore& score;
  std::string device, precision, alias;
  double busy = 0;  // share of the training in which the device computed; NaN: not measured
};

std::string roll_json(const RollRecord& record);
std::string roll_html(const RollRecord& record);

// The page of `brim forecast train`.
struct EnsembleRecord {
  const forecast::ForecastSettings& settings;
  const forecast::SeriesStore& series;
  const forecast::NbeatsModel& model;
  const forecast::TrainedEnsemble& trained;
  const forecast::EnsembleForecasts& forecasts;  // with components where its stacks have a meaning, else empty
  std::string device, precision;
};
std::string ensemble_html(const EnsembleRecord& record);

// The headline, a sentence for each reference.
std::string roll_headline(const forecast::RollScore& score);

}  // namespace brim::report
