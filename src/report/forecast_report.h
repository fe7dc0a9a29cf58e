// SPDX-License-Identifier: Apache-2.0
// Parts of forecast reports: fan chart of one series, errors by fold and by step ahead, and the table of folds. Does
// not compute forecasts or scores.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "report/html.h"
#include "report/plot.h"

namespace brim::report {

// One series around a cutoff: history, forecast with intervals, and actual values. x is in steps, with the cutoff at 0.
struct ForecastFan {
  std::string title;
  std::vector<double> history;  // up to the cutoff; NaN if missing
  std::vector<double> forecast, actual;
  struct Interval {
    double level;  // percent
    std::vector<double> low, high;
  };
  std::vector<Interval> intervals;
};
std::string svg(const ForecastFan& fan);

struct FoldFigures {
  std::string cutoff;  // as a time
  bool refitted = true;
  int64_t series = 0, steps = 0;
  double smape = 0, mase = 0, mae = 0, skill_naive = 0, skill_snaive = 0;  // NaN if undefined
  double coverage = 0, shrink = 0;                                         // mean of λ over steps
};
HtmlTable fold_table(std::span<const FoldFigures> folds);

// "Better than naive by 3.1 % (Diebold–Mariano p = 0.02)"; reports no difference for p ≥ 0.05.
std::string skill_sentence(double skill, double p_value, std::string_view reference);

// Loss curves, one per lane: means over `every` steps, and over the rest up to `steps`.
struct LaneCurve {
  std::string name;
  std::vector<double> losses;
  bool percent = false;  // losses in percent are shown as fractions, same as the others
};
LinePlot losses_by_lane(const std::vector<LaneCurve>& lanes, int64_t every, int64_t steps, std::string_view title);
// Bytes by purpose relative to the limit.
std::string memory_against_limit(const std::vector<std::pair<std::string, double>>& parts, double limit);
// Contributions of the level and the stacks to the forecast of a series.
struct ComponentLines {
  std::string title;
  std::vector<std::string> names;
  std::vector<std::vector<double>> values;
};
std::string svg(const ComponentLines& lines);

// Page of `brim forecast predict`: each series with its forecast, and its components if there are any.
struct PlottedSeries {
  ForecastFan fan;
  ComponentLines components;
};
struct ForecastPage {
  std::string subtitle;
  std::vector<PlottedSeries> series;
};
std::string forecast_html(const ForecastPage& page);

// Errors by fold and by step ahead, with those of the baselines.
std::string error_by_fold(std::span<const double> model, std::span<const double> naive, std::span<const double> snaive);
std::string error_by_step(std::span<const double> model, std::span<const double> naive);

}  // namespace brim::report
