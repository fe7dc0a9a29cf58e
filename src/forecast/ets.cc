// SPDX-License-Identifier: Apache-2.0
#include "forecast/ets.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "forecast/nelder_mead.h"
#include "forecast/seasonal.h"

namespace brim::forecast {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr int64_t kLongestSeason = 24;

enum class Trend : uint8_t { none, additive, damped };

struct EtsSpec {
  bool multiplicative_error = false;
  Trend trend = Trend::none;
  SeasonKind season = SeasonKind::none;
};

std::string name_of(const EtsSpec& spec) {
  constexpr const char *kTrends[] = {"N", "A", "Ad"}, *kSeasons[] = {"N", "A", "M"};
  return fmt::format("ETS({},{},{})", spec.multiplicative_error ? "M" : "A", kTrends[static_cast<size_t>(spec.trend)],
                     kSeasons[static_cast<size_t>(spec.season)]);
}

// Smoothing parameters and the current state. `seasonal` is indexed by position in the season.
struct EtsState {
  double alpha = 0, beta = 0, gamma = 0, phi = 1;
  double level = 0, slope = 0;
  std::array<double, kLongestSeason> seasonal{};
};

// Σ log |x| without a logarithm per value.
class LogSum {
 public:
  void multiply(double x) {
    product_ *= x;
    if (product_ > kLarge || product_ < kSmall) fold();
  }
  double value() {
    fold();
    return sum_;
  }

 private:
  static constexpr double kLarge = 1e150, kSmall = 1e-150, kLeast = 1e-300;
  void fold() {
    sum_ += std::log(std::max(product_, kLeast));
    product_ = 1;
  }
  double product_ = 1, sum_ = 0;
};

// −2 × log likelihood of the values, without constants; `state` moves to the end of the series.
template <bool kMultiplicative, bool kTrend, SeasonKind kSeason>
double likelihood(std::span<const double> values, size_t period, EtsState& s) {
  constexpr double kNearZero = 1e-10, kLeastSquare = 1e-8;
  double squares = 0, level = s.level, slope = s.slope;
  LogSum scale;
  size_t position = 0;
  for (const double y : values) {
    const double damped = kTrend ? s.phi * slope : 0, base = level + damped;
    double forecast = base, seen = y;  // seen: the value without its season
    double& index = s.seasonal[position];
    if constexpr (kSeason == SeasonKind::additive) {
      forecast += index;
      seen -= index;
    } else if constexpr (kSeason == SeasonKind::multiplicative) {
      forecast *= index;
      seen = std::abs(index) < kNearZero ? 1 / kNearZero : y / index;
    }
    double error = y - forecast;
    if constexpr (kMultiplicative) {
      const double divisor = std::abs(forecast) < kNearZero ? forecast + kNearZero : forecast;
      error /= divisor;
      scale.multiply(std::abs(divisor));
    }
    squares += error * error;
    const double moved = s.alpha * (seen - base);
    level = base + moved;
    if constexpr (kTrend) slope = damped + s.beta / s.alpha * moved;
    if constexpr (kSeason == SeasonKind::additive)
      index += s.gamma * (y - base - index);
    else if constexpr (kSeason == SeasonKind::multiplicative)
      index += s.gamma * ((std::abs(base) < kNearZero ? 1 / kNearZero : y / base) - index);
    if constexpr (kSeason != SeasonKind::none) position = position + 1 == period ? 0 : position + 1;
  }
  s.level = level;
  s.slope = slope;
  const double result = static_cast<double>(values.size()) * std::log(std::max(squares, kLeastSquare)) +
                        (kMultiplicative ? 2 * scale.value() : 0);
  return std::isnan(result) ? kInfinite : result;
}

using Likelihood = double (*)(std::span<const double>, size_t, EtsState&);

template <bool kMultiplicative, bool kTrend>
Likelihood likelihood_of(SeasonKind season) {
  switch (season) {
    case SeasonKind::additive:
      return likelihood<kMultiplicative, kTrend, SeasonKind::additive>;
    case SeasonKind::multiplicative:
      return likelihood<kMultiplicative, kTrend, SeasonKind::multiplicative>;
    case SeasonKind::none:
      break;
  }
  return likelihood<kMultiplicative, kTrend, SeasonKind::none>;
}

Likelihood likelihood_of(const EtsSpec& spec) {
  const bool trend = spec.trend != Trend::none;
  if (spec.multiplicative_error)
    return trend ? likelihood_of<true, true>(spec.season) : likelihood_of<true, false>(spec.season);
  return trend ? likelihood_of<false, true>(spec.season) : likelihood_of<false, false>(spec.season);
}

// Coefficients of the least-squares fit of `values` by the given columns, by Gaussian elimination of the normal
// equations. A column that depends on earlier ones gets the coefficient 0.
template <size_t N>
std::array<double, N> least_squares(std::span<const double> values, const std::array<std::vector<double>, N>& columns) {
  std::array<std::array<double, N + 1>, N> rows{};
  for (size_t i = 0; i < N; ++i)
    for (size_t t = 0; t < values.size(); ++t) {
      for (size_t j = 0; j < N; ++j) rows[i][j] += columns[i][t] * columns[j][t];
      rows[i][N] += columns[i][t] * values[t];
    }
  std::array<bool, N> used{};
  for (size_t i = 0; i < N; ++i) {
    used[i] = std::abs(rows[i][i]) > 1e-9 * static_cast<double>(values.size());
    for (size_t k = 0; k < N && used[i]; ++k) {
      if (k == i) continue;
      const double factor = rows[k][i] / rows[i][i];
      for (size_t j = i; j <= N; ++j) rows[k][j] -= factor * rows[i][j];
    }
  }
  std::array<double, N> out{};
  for (size_t i = 0; i < N; ++i) out[i] = used[i] ? rows[i][N] / rows[i][i] : 0;
  return out;
}

std::vector<double> powers_of_time(size_t n, int power) {
  std::vector<double> out(n, 1);
  for (size_t t = 0; t < n && power == 1; ++t) out[t] = static_cast<double>(t + 1);
  return out;
}

// Seasonal values at every point: from a decomposition, or with fewer than three seasons, the residuals of a line that
// is fitted together with one harmonic.
std::vector<double> seasonal_values(std::span<const double> values, size_t period, SeasonKind kind) {
  const size_t n = values.size();
  std::vector<double> out(n);
  if (n >= 3 * period) {
    const std::vector<double> indices = seasonal_indices(values, static_cast<int64_t>(period), kind);
    for (size_t t = 0; t < n; ++t) out[t] = indices[t % period];
    return out;
  }
  std::array<std::vector<double>, 4> columns = {powers_of_time(n, 0), powers_of_time(n, 1)};
  for (size_t t = 1; t <= n; ++t) {
    const double angle = 2 * M_PI * static_cast<double>(t) / static_cast<double>(period);
    columns[2].push_back(std::cos(angle));
    columns[3].push_back(std::sin(angle));
  }
  const auto fit = least_squares(values, columns);
  for (size_t t = 0; t < n; ++t) {
    const double line = fit[0] + fit[1] * static_cast<double>(t + 1);
    out[t] = kind == SeasonKind::additive ? values[t] - line : values[t] / line;
  }
  return out;
}

class EtsFit {
 public:
  EtsFit(std::span<const double> values, size_t period) : values_(values), period_(period) {}

  // Fits the parameters and the initial state; returns the AICc and the state at the end of the series.
  double fit(const EtsSpec& spec, EtsState& end) {
    std::vector<double> x = start(spec);
    if (x.size() + 1 >= values_.size()) return kInfinite;
    const Likelihood run = likelihood_of(spec);
    const double value = search_.minimize(x, lower_, upper_, [&](std::span<const double> at) {
      EtsState state;
      return unpack(spec, at, state) ? run(values_, period_, state) : kInfinite;
    });
    if (!unpack(spec, x, end)) return kInfinite;
    run(values_, period_, end);
    const auto n = static_cast<double>(values_.size()), k = static_cast<double>(x.size() + 1);
    const double left = n - k - 1;
    return left > 0 ? value + 2 * k + 2 * k * (k + 1) / left : kInfinite;
  }

 private:
  // Initial values, and the bounds of the search.
  std::vector<double> start(const EtsSpec& spec) {
    constexpr double kLeast = 1e-4, kMost = 0.9999, kLeastPhi = 0.8, kMostPhi = 0.98;
    const bool seasonal = spec.season != SeasonKind::none;
    std::vector<double> x;
    lower_.clear();
    upper_.clear();
    const auto add = [&](double value, double lower, double upper) {
      x.push_back(value);
      lower_.push_back(lower);
      upper_.push_back(upper);
    };
    const double alpha = kLeast + 0.2 * (kMost - kLeast) / (seasonal ? static_cast<double>(period_) : 1);
    add(alpha, kLeast, kMost);
    // The slope adapts slowly. With multiplicative errors on seasonal data as slowly as in seasonal models, which is
    // more accurate on M3's and Tourism's quarterly series.
    const double most_beta =
        spec.multiplicative_error ? kLeast + 0.2 * (kMost - kLeast) / static_cast<double>(period_) : alpha;
    if (spec.trend != Trend::none) add(kLeast + 0.1 * (most_beta - kLeast), kLeast, most_beta);
    if (seasonal) add(kLeast + 0.05 * (1 - alpha - kLeast), kLeast, 1 - alpha);
    if (spec.trend == Trend::damped) add(kLeastPhi + 0.99 * (kMostPhi - kLeastPhi), kLeastPhi, kMostPhi);
    for (const double state : initial_state(spec)) add(state, -kInfinite, kInfinite);
    return x;
  }

  // Level, slope, and the seasonal values of all positions but the first, which follows from them.
  std::vector<double> initial_state(const EtsSpec& spec) const {
    constexpr double kLeastIndex = 0.01;
    std::vector<double> adjusted(values_.begin(), values_.end()), seasonal;
    if (spec.season != SeasonKind::none) {
      seasonal = seasonal_values(values_, period_, spec.season);
      const bool ratios = spec.season == SeasonKind::multiplicative;
      for (size_t t = 0; t < adjusted.size(); ++t)
        adjusted[t] = ratios ? values_[t] / std::max(seasonal[t], kLeastIndex) : values_[t] - seasonal[t];
      seasonal.erase(seasonal.begin());
      seasonal.resize(period_ - 1);
      double sum = 0;
      for (double& index : seasonal) {
        if (ratios) index = std::max(index, kLeastIndex);
        sum += index;
      }
      if (const auto all = static_cast<double>(period_); ratios && sum >= all)
        for (double& index : seasonal) index *= (all - kLeastIndex) / sum;
    }
    const size_t period = spec.season == SeasonKind::none ? 1 : period_;
    const size_t n = std::min(std::max<size_t>(10, 2 * period), adjusted.size());
    const std::span<const double> head = std::span(adjusted).first(n);
    std::vector<double> state;
    if (spec.trend == Trend::none) {
      double mean = 0;
      for (const double v : head) mean += v / static_cast<double>(n);
      state = {mean};
    } else {
      const auto line = least_squares<2>(head, {powers_of_time(n, 0), powers_of_time(n, 1)});
      state = {line[0], line[1]};
      if (std::abs(line[0] + line[1]) < 1e-8) state = {line[0] * 1.001, line[1] * 0.999};
    }
    state.insert(state.end(), seasonal.begin(), seasonal.end());
    return state;
  }

  // False if the first seasonal index would be negative.
  bool unpack(const EtsSpec& spec, std::span<const double> x, EtsState& state) const {
    size_t i = 0;
    state.alpha = x[i++];
    state.beta = spec.trend != Trend::none ? x[i++] : 0;
    state.gamma = spec.season != SeasonKind::none ? x[i++] : 0;
    state.phi = spec.trend == Trend::damped ? x[i++] : 1;
    state.level = x[i++];
    state.slope = spec.trend != Trend::none ? x[i++] : 0;
    if (spec.season == SeasonKind::none) return true;
    const bool ratios = spec.season == SeasonKind::multiplicative;
    double sum = 0;
    for (size_t p = 1; p < period_; ++p) {
      state.seasonal[p] = x[i++];
      sum += state.seasonal[p];
      if (ratios && state.seasonal[p] < 0) return false;
    }
    state.seasonal[0] = (ratios ? static_cast<double>(period_) : 0) - sum;
    return !ratios || state.seasonal[0] >= 0;
  }

  std::span<const double> values_;
  const size_t period_;
  std::vector<double> lower_, upper_;
  NelderMead search_;
};

std::vector<EtsSpec> candidates(bool positive, bool seasonal) {
  std::vector<EtsSpec> all;
  for (const bool multiplicative : {false, true})
    for (const Trend trend : {Trend::none, Trend::additive, Trend::damped})
      for (const SeasonKind season : {SeasonKind::none, SeasonKind::additive, SeasonKind::multiplicative}) {
        if (season != SeasonKind::none && !seasonal) continue;
        if (multiplicative && !positive) continue;
        // Multiplicative seasons with additive errors are numerically unstable.
        if (season == SeasonKind::multiplicative && !multiplicative) continue;
        all.push_back({multiplicative, trend, season});
      }
  return all;
}

std::vector<double> forecast_from(const EtsSpec& spec, const EtsState& state, int64_t horizon, size_t seen,
                                  size_t period) {
  std::vector<double> out;
  double damping = 0, power = 1;
  for (int64_t h = 0; h < horizon; ++h) {
    power *= state.phi;
    damping += power;
    double value = state.level + damping * state.slope;
    const double index = state.seasonal[(seen + static_cast<size_t>(h)) % period];
    if (spec.season == SeasonKind::additive) value += index;
    if (spec.season == SeasonKind::multiplicative) value *= index;
    out.push_back(value);
  }
  return out;
}

}  // namespace

EtsForecast forecast_ets(std::span<const double> values, int64_t horizon, int64_t season) {
  const auto n = static_cast<int64_t>(values.size());
  BRIM_CHECK(n >= kEtsPoints, "{} values, at least {} are required", n, kEtsPoints);
  EtsForecast best;
  best.values.assign(static_cast<size_t>(horizon), values.back());
  best.model = "constant";
  best.aicc = kInfinite;
  if (std::all_of(values.begin(), values.end(), [&](double v) { return v == values[0]; })) return best;
  SeasonalAdjustment seasonal;
  if (season > kLongestSeason && n >= 2 * season && is_autocorrelated(values, season)) {
    seasonal = adjust_for_season(values, season);
    values = seasonal.adjusted;
  }
  const bool has_season = season > 1 && season <= kLongestSeason && n > season;
  const size_t period = has_season ? static_cast<size_t>(season) : 1;
  const bool positive = std::all_of(values.begin(), values.end(), [](double v) { return v > 0; });
  EtsFit fit(values, period);
  for (const EtsSpec& spec : candidates(positive, has_season)) {
    EtsState end;
    const double aicc = fit.fit(spec, end);
    if (!(aicc < best.aicc)) continue;
    best = {forecast_from(spec, end, horizon, values.size(), period), name_of(spec), aicc};
  }
  seasonal.restore(best.values);
  return best;
}

}  // namespace brim::forecast
