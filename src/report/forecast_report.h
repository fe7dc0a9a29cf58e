// SPDX-License-Identifier: Apache-2.0
// Parts of a page about forecasts: the fan of one series, errors by fold and by step ahead, and the table of folds.
#pragma once
#include <span>
#include <string>
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

// Error by fold and by step ahead, beside the references'.
std::string error_by_fold(std::span<const double> model, std::span<const double> naive, std::span<const double> snaive);
std::string error_by_step(std::span<const double> model, std::span<const double> naive);

}  // namespace brim::report
