// SPDX-License-Identifier: Apache-2.0
// Parts of a page about forecasts: the fan of one series, errors by fold and by step ahead, and the table of folds.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "report/html.h"

namespace brim::report {

// One series around a cutoff: what was known, what was forecast with its intervals, what came. x counts steps, 0 is the
// cutoff.
struct ForecastFan {
  std::string title;
  std::vector<double> history;  // up to the cutoff; NaN where absent
  std::vector<double> forecast, actual;
  struct Interval {
    double level;  // percent
    std::vector<double> low, high;
  };
  std::vector<Interval> intervals;
};
std::string svg(const ForecastFan& fan);

struct FoldFigures {
  std::string cutoff;  // its time
  bool refitted = true;
  int64_t series = 0, steps = 0;
  double smape = 0, mase = 0, mae = 0, skill_naive = 0, skill_snaive = 0;  // NaN: nothing can be said
  double coverage = 0, shrink = 0;                                         // mean of λ over steps
};
HtmlTable fold_table(std::span<const FoldFigures> folds);

// "Better than naive by 3.1 % (Diebold–Mariano p = 0.02)"; a difference of p ≥ 0.05 is called none.
std::string skill_sentence(double skill, double p_value, std::string_view reference);

// Losses of lanes, a line each: means of `every` steps.
struct LaneCurve {
  std::string name;
  std::vector<double> losses;
};
std::string losses_by_lane(const std::vector<LaneCurve>& lanes, int64_t every, std::string_view title);
// Bytes by purpose against the limit.
std::string memory_against_limit(const std::vector<std::pair<std::string, double>>& parts, double limit);
// What a series' level and stacks add to its forecast.
struct ComponentLines {
  std::string title;
  std::vector<std::string> names;
  std::vector<std::vector<double>> values;
};
std::string svg(const ComponentLines& lines);

// Error by fold and by step ahead, beside the references'.
std::string error_by_fold(std::span<const double> model, std::span<const double> naive, std::span<const double> snaive);
std::string error_by_step(std::span<const double> model, std::span<const double> naive);

}  // namespace brim::report
