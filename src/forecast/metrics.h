// SPDX-License-Identifier: Apache-2.0
// How good forecasts are, as the M4 competition counts it. Per series over the horizon first, then the mean over
// series; OWA is made of group means, never averaged itself. Absent actual values (NaN) count nowhere. Losses that
// models learn by are elsewhere.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace brim::forecast {

// Of one series over its horizon; NaN where nothing can be said (no actual value, a scale of zero).
double smape(std::span<const double> forecast, std::span<const float> actual);  // percent, of 200; 0/0 counts 0
double mape(std::span<const double> forecast, std::span<const float> actual);   // percent; actual zeros are left out
double mae(std::span<const double> forecast, std::span<const float> actual);
double mase(std::span<const double> forecast, std::span<const float> actual, double scale);
double pinball(std::span<const double> quantile_forecast, std::span<const float> actual, double quantile);

// Mean |x_t − x_(t−season)| over the history: MASE's scale. NaN where no two points are a season apart.
double seasonal_scale(std::span<const float> history, int64_t season);

// Mean of what is finite, and of how many.
struct Mean {
  double sum = 0;
  int64_t count = 0;
  void add(double value);
  double value() const;  // NaN of nothing
};

// Share of actual values within [low, high].
struct Coverage {
  int64_t inside = 0, all = 0;
  void add(std::span<const double> low, std::span<const double> high, std::span<const float> actual);
  double share() const;
};

double owa(double smape, double mase, double naive2_smape, double naive2_mase);
// 1 − error ÷ reference error: 0 is no better than the reference, 1 perfect.
double skill(double error, double reference);

// Whether one forecaster's losses differ from another's over successive cutoffs (Diebold and Mariano 1995, with the
// correction of Harvey, Leybourne and Newbold 1997): differences a − b in time order, autocovariances up to `lags`
// counted since forecasts of overlapping horizons err alike.
struct DieboldMariano {
  double statistic = 0;  // below zero: the first is better
  double p_value = 1;    // two-sided, Student's t with n − 1 degrees of freedom; NaN below three differences
};
DieboldMariano diebold_mariano(std::span<const double> differences, int64_t lags);

// P(|T| > |t|) for Student's t.
double student_two_sided(double t, double degrees);

}  // namespace brim::forecast
