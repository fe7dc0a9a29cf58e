// SPDX-License-Identifier: Apache-2.0
// Forecast accuracy as defined by the M4 competition: per series over the horizon, then averaged over series. OWA is
// computed from group means and never averaged itself. Missing actual values (NaN) are ignored. Training losses are
// elsewhere.
#pragma once
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace brim::forecast {

// For one series over its horizon; NaN if undefined (no actual values, or zero scale).
double smape(std::span<const double> forecast, std::span<const float> actual);  // percent, 0 to 200; 0/0 counts as 0
double mape(std::span<const double> forecast, std::span<const float> actual);   // percent; skips zero actual values
double mae(std::span<const double> forecast, std::span<const float> actual);
double mase(std::span<const double> forecast, std::span<const float> actual, double scale);
double pinball(std::span<const double> quantile_forecast, std::span<const float> actual, double quantile);

// Continuous ranked probability score of one forecast from its quantiles: 2 ∫ pinball(q) dq, with each quantile
// weighted by the part of [0, 1] that is closest to it.
class Crps {
 public:
  void add(double quantile, double pinball) { nodes_.emplace_back(quantile, pinball); }
  double value();

 private:
  std::vector<std::pair<double, double>> nodes_;
};

// Mean |x_t − x_(t−season)| over the history, the scale of MASE. NaN if no two present points are one season apart.
double seasonal_scale(std::span<const float> history, int64_t season);

// Mean and count of finite values.
struct Mean {
  double sum = 0;
  int64_t count = 0;
  void add(double value);
  double value() const;  // NaN if empty
};

// Fraction of actual values within [low, high].
struct Coverage {
  int64_t inside = 0, all = 0;
  void add(std::span<const double> low, std::span<const double> high, std::span<const float> actual);
  double share() const;
};

double owa(double smape, double mase, double naive2_smape, double naive2_mase);
// 1 − error ÷ baseline error: 0 is no better than the baseline, 1 is perfect.
double skill(double error, double reference);

// Diebold-Mariano test (1995) with the correction of Harvey, Leybourne and Newbold (1997): do the losses of two
// forecasters differ over successive cutoffs? Takes differences a − b in time order; autocovariances up to `lags` are
// included because errors of overlapping horizons are correlated.
struct DieboldMariano {
  double statistic = 0;  // negative: the first is better
  double p_value = 1;    // two-sided, Student's t with n − 1 degrees of freedom; NaN for fewer than three differences
};
DieboldMariano diebold_mariano(std::span<const double> differences, int64_t lags);

// P(|T| > |t|) for Student's t.
double student_two_sided(double t, double degrees);

}  // namespace brim::forecast
