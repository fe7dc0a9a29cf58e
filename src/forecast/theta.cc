// SPDX-License-Identifier: Apache-2.0
#include "forecast/theta.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "forecast/nelder_mead.h"
#include "forecast/seasonal.h"

namespace brim::forecast {
namespace {

struct ThetaParams {
  double level, alpha, theta;
};

// Level of the smoothing and the line fitted to the past values. A dynamic model refits the line at every point, a
// static one keeps that of the whole series.
class ThetaState {
 public:
  ThetaState(const ThetaParams& p, double first, double intercept, double slope, bool dynamic)
      : dynamic_(dynamic),
        alpha_(p.alpha),
        weight_(1 - 1 / p.theta),
        level_(p.alpha * first + (1 - p.alpha) * p.level),
        mean_(first),
        intercept_(dynamic ? first : intercept),
        slope_(dynamic ? 0 : slope),
        decay_(1 - p.alpha) {}

  double next() const {
    return level_ + weight_ * (intercept_ * decay_ + slope_ * (1 - decay_ * (1 - alpha_)) / alpha_);
  }

  void see(double y) {
    level_ += alpha_ * (y - level_);
    decay_ *= 1 - alpha_;
    if (dynamic_) {
      const double seen = seen_ + 1;
      slope_ = ((seen - 2) * slope_ + 6 * (y - mean_) / seen) / (seen + 1);
      mean_ += (y - mean_) / seen;
      intercept_ = mean_ - slope_ * (seen + 1) / 2;
    }
    seen_ += 1;
  }

 private:
  const bool dynamic_;
  const double alpha_, weight_;
  double level_, mean_, intercept_, slope_;
  double decay_;     // (1 − α) to the power of the number of points seen
  double seen_ = 1;  // number of points seen
};

struct Line {
  double intercept, slope;
};
Line line_through(std::span<const double> values) {
  const auto n = static_cast<double>(values.size());
  double mean = 0, moment = 0;
  for (size_t t = 0; t < values.size(); ++t) {
    mean += values[t] / n;
    moment += static_cast<double>(t + 1) * values[t] / n;
  }
  const double slope = 6 * (2 * moment - (n + 1) * mean) / (n * n - 1);
  return {mean - slope * (n + 1) / 2, slope};
}

struct ThetaModel {
  bool optimised, dynamic;
};

class ThetaFit {
 public:
  explicit ThetaFit(std::span<const double> values) : values_(values), line_(line_through(values)) {
    for (const double v : values) size_ += std::abs(v) / static_cast<double>(values.size());
    size_ = std::max(size_, 1e-10);
  }

  // Parameters with the least squared one-step error, and this error.
  double fit(const ThetaModel& model, ThetaParams& params) {
    constexpr double kFar = 1e10;
    const double lower[] = {-kFar, 0.1, 1}, upper[] = {kFar, 0.99, kFar};
    std::vector<double> x = {values_[0] / 2, 0.5};
    if (model.optimised) x.push_back(2);
    const auto params_of = [&](std::span<const double> at) {
      return ThetaParams{at[0], at[1], model.optimised ? at[2] : 2.0};
    };
    const double error =
        search_.minimize(x, std::span(lower).first(x.size()), std::span(upper).first(x.size()),
                         [&](std::span<const double> at) { return squared_error(model, params_of(at)); });
    params = params_of(x);
    return error;
  }

  std::vector<double> forecast(const ThetaModel& model, const ThetaParams& params, int64_t horizon) const {
    ThetaState state(params, values_[0], line_.intercept, line_.slope, model.dynamic);
    for (const double y : values_.subspan(1)) state.see(y);
    std::vector<double> out;
    for (int64_t h = 0; h < horizon; ++h) {
      out.push_back(state.next());
      state.see(out.back());
    }
    return out;
  }

 private:
  // The first three points fit the initial state and do not count.
  double squared_error(const ThetaModel& model, const ThetaParams& params) const {
    constexpr size_t kNotCounted = 3;
    ThetaState state(params, values_[0], line_.intercept, line_.slope, model.dynamic);
    double sum = 0;
    for (size_t t = 1; t < values_.size(); ++t) {
      const double error = values_[t] - state.next();
      if (t >= kNotCounted) sum += error * error;
      state.see(values_[t]);
    }
    return std::isfinite(sum) ? sum / size_ : std::numeric_limits<double>::infinity();
  }

  std::span<const double> values_;
  Line line_;
  double size_ = 0;  // mean absolute value
  NelderMead search_;
};

}  // namespace

std::vector<double> forecast_theta(std::span<const double> values, int64_t horizon, int64_t season) {
  const auto n = static_cast<int64_t>(values.size());
  BRIM_CHECK(n >= kThetaPoints, "{} values, at least {} are required", n, kThetaPoints);
  if (std::all_of(values.begin(), values.end(), [&](double v) { return v == values[0]; }))
    return std::vector<double>(static_cast<size_t>(horizon), values[0]);
  SeasonalAdjustment seasonal;
  if (season >= 2 && n >= 2 * season && is_autocorrelated(values, season))
    seasonal = adjust_for_season(values, season);
  else
    seasonal.adjusted.assign(values.begin(), values.end());
  ThetaFit fit(seasonal.adjusted);
  constexpr ThetaModel kModels[] = {{false, false}, {true, false}, {false, true}, {true, true}};
  ThetaModel best = kModels[0];
  ThetaParams params{}, best_params{};
  double least = std::numeric_limits<double>::infinity();
  for (const ThetaModel& model : kModels) {
    const double error = fit.fit(model, params);
    if (!(error < least)) continue;
    least = error;
    best = model;
    best_params = params;
  }
  if (!std::isfinite(least)) return std::vector<double>(static_cast<size_t>(horizon), values.back());
  std::vector<double> out = fit.forecast(best, best_params, horizon);
  seasonal.restore(out);
  return out;
}

}  // namespace brim::forecast
