// SPDX-License-Identifier: Apache-2.0
#include "forecast/trial.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "forecast/metrics.h"

namespace brim::forecast {
namespace {

using Forecasts = std::vector<std::vector<double>>;  // by series of an origin

// Models of the trial, in the order of the forecasts: N-BEATS, then the baselines.
constexpr Baseline kTried[] = {Baseline::theta, Baseline::ets, Baseline::naive, Baseline::snaive};
constexpr size_t kNaive = 3;  // in the scores

// Which models take part in a mean: bit 0 is N-BEATS, bit i the baseline i − 1.
constexpr unsigned kNaiveBit = 0b1000, kSeasonalBit = 0b10000;

// Each model alone, then the means of several. The naive forecast is in none of them.
std::vector<unsigned> tried_means(bool combine, bool seasonal) {
  std::vector<unsigned> all = {0b1, 0b10, 0b100, kNaiveBit};
  if (seasonal) all.push_back(kSeasonalBit);
  const unsigned end = seasonal ? 2 * kSeasonalBit : kNaiveBit;
  for (unsigned mean = 1; combine && mean < end; ++mean)
    if ((mean & (mean - 1)) != 0 && (mean & kNaiveBit) == 0) all.push_back(mean);
  return all;
}

TrialScore named(unsigned mean) {
  TrialScore score;
  std::vector<std::string> names;
  if ((mean & 1) != 0) {
    score.nbeats = true;
    names.emplace_back("N-BEATS");
  }
  for (size_t i = 0; i < std::size(kTried); ++i) {
    if ((mean >> (i + 1) & 1) == 0) continue;
    score.baselines.push_back(kTried[i]);
    names.emplace_back(baseline_title(kTried[i]));
  }
  const std::string last = names.back();
  names.pop_back();
  score.name = names.empty() ? last : fmt::format("mean of {} and {}", fmt::join(names, ", "), last);
  return score;
}

// Forecasts of all models from one origin.
struct Origin {
  HeldOut held_out;
  std::vector<Forecasts> models;
};

std::vector<double> mean_forecast(const Origin& origin, unsigned mean, size_t series) {
  std::vector<double> out(origin.held_out.actual[series].size());
  double count = 0;
  for (size_t m = 0; m < origin.models.size(); ++m) {
    if ((mean >> m & 1) == 0) continue;
    count += 1;
    for (size_t h = 0; h < out.size(); ++h) out[h] += origin.models[m][series][h];
  }
  for (double& value : out) value /= count;
  return out;
}

class TrialRun {
 public:
  TrialRun(const SeriesStore& series, int64_t horizon, int64_t season)
      : series_(series), horizon_(horizon), season_(season) {}

  void add_origin(int64_t k, EnsembleDevice& on, const NbeatsModel& model, std::vector<Forecasts>& baselines,
                  const std::atomic<bool>* stop) {
    Origin origin{hold_out(series_, horizon_, k, fewest_points(season_)), {}};
    if (origin.held_out.known.size() == 0) return;
    const EnsembleForecasts forecasts = predict_ensemble(on, model, origin.held_out.known, false, {}, stop);
    origin.models.emplace_back();
    for (int64_t i = 0; i < origin.held_out.known.size(); ++i) origin.models[0].push_back(forecasts.point(i));
    const BaselineOptions how{horizon_, season_, on.threads(), {}, stop};
    if (baselines.empty())
      for (const Baseline b : kTried) baselines.push_back(forecast_all(b, origin.held_out.known, how).values);
    origin.models.insert(origin.models.end(), baselines.begin(), baselines.end());
    origins_.push_back(std::move(origin));
  }

  void score(bool combine, Trial& trial) const {
    const std::vector<unsigned> means = tried_means(combine, season_ > 1);
    for (const unsigned mean : means) trial.scores.push_back(scored(mean));
    const Scores naive = trial.scores[kNaive].scores;
    for (TrialScore& score : trial.scores) score.error = relative_error(score.scores, naive);
    if (combine && naive.smape == 0) trial.chosen = kNaive;  // others may be exact too, but not simpler
    for (size_t i = 1; combine && i < trial.scores.size(); ++i)
      if (trial.scores[i].error < trial.scores[trial.chosen].error) trial.chosen = i;
    const unsigned mean = means[trial.chosen];
    trial.errors = ConformalIntervals(horizon_);
    for (auto origin = origins_.rbegin(); origin != origins_.rend() && !enough_errors(trial.errors); ++origin)
      for (size_t i = 0; i < origin->held_out.of.size(); ++i)
        trial.errors.add(0, interval_scale(origin->held_out.known.series(static_cast<int64_t>(i)), season_),
                         mean_forecast(*origin, mean, i), origin->held_out.actual[i]);
    if (origins_.empty()) return;
    trial.series = origins_.back().held_out.known.size();
    show(mean, trial);
  }

 private:
  double scale_of(const Origin& origin, size_t i) const {
    return seasonal_scale(origin.held_out.known.series(static_cast<int64_t>(i)), season_);
  }

  TrialScore scored(unsigned mean) const {
    TrialScore score = named(mean);
    Mean smape_of, mase_of, mae_of, mape_of;
    for (auto origin = origins_.rbegin(); origin != origins_.rend(); ++origin) {
      Mean here;
      for (size_t i = 0; i < origin->held_out.of.size(); ++i) {
        const std::vector<double> values = mean_forecast(*origin, mean, i);
        const auto& actual = origin->held_out.actual[i];
        here.add(mase(values, actual, scale_of(*origin, i)));
        smape_of.add(smape(values, actual));
        mae_of.add(mae(values, actual));
        mape_of.add(mape(values, actual));
      }
      score.mase.push_back(here.value());
      mase_of.add(here.value());
    }
    score.scores = {smape_of.value(), mase_of.value(), mae_of.value(), mape_of.value(), std::nan("")};
    return score;
  }

  // The best, median and worst series of the latest origin.
  void show(unsigned mean, Trial& trial) const {
    const Origin& origin = origins_.back();
    std::vector<std::pair<double, size_t>> ranked;
    for (size_t i = 0; i < origin.held_out.of.size(); ++i)
      if (const double e = mase(mean_forecast(origin, mean, i), origin.held_out.actual[i], scale_of(origin, i));
          std::isfinite(e))
        ranked.emplace_back(e, i);
    if (ranked.empty()) return;
    std::sort(ranked.begin(), ranked.end());
    const auto add = [&](const char* which, const std::pair<double, size_t>& one) {
      const auto known = origin.held_out.known.series(static_cast<int64_t>(one.second));
      trial.shown.push_back({which, origin.held_out.of[one.second], static_cast<int64_t>(known.size()), one.first,
                             mean_forecast(origin, mean, one.second), origin.held_out.actual[one.second]});
    };
    add("Best", ranked.front());
    if (ranked.size() > 2) add("Median", ranked[ranked.size() / 2]);
    if (ranked.size() > 1) add("Worst", ranked.back());
  }

  const SeriesStore& series_;
  const int64_t horizon_, season_;
  std::vector<Origin> origins_;  // the latest last
};

}  // namespace

double relative_error(const Scores& scores, const Scores& naive) {
  double sum = 0, count = 0;
  for (const auto& [own, last] : {std::pair(scores.smape, naive.smape), std::pair(scores.mase, naive.mase)}) {
    if (!std::isfinite(own) || !std::isfinite(last)) continue;  // MASE of constant series
    sum += last > 0 ? own / last : own > 0 ? std::numeric_limits<double>::infinity() : 1;
    count += 1;
  }
  return count > 0 ? sum / count : std::nan("");
}

int64_t wanted_origins(const ForecastSettings& s, const SeriesStore& series, int64_t horizon) {
  constexpr int64_t kForecasts = 100, kFewest = 4, kMost = 20, kShare = 10;
  if (s.held_out == 0 || s.given.contains("held_out") || series.size() == 0) return s.held_out;
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < series.size(); ++i) lengths.push_back(static_cast<int64_t>(series.series(i).size()));
  const auto median = lengths.begin() + static_cast<std::ptrdiff_t>(lengths.size() / 2);
  std::nth_element(lengths.begin(), median, lengths.end());
  const int64_t enough = std::clamp((kForecasts + series.size() - 1) / series.size(), kFewest, kMost);
  return std::max(s.held_out, std::min(enough, *median / (kShare * horizon)));
}

int64_t trial_origins(const ForecastSettings& s, const SeriesStore& series, int64_t season) {
  for (int64_t origins = wanted_origins(s, series, s.horizon); origins > 0; --origins) {
    int64_t enough = 0, longest = 0;
    for (int64_t i = 0; i < series.size(); ++i) {
      const int64_t known = points_before(series.series(i), s.horizon, origins, fewest_points(season));
      enough += known > 0;
      longest = std::max(longest, known);
    }
    if (2 * enough >= series.size() && longest > s.horizon) return origins;
  }
  return 0;
}

bool fit_history(ForecastSettings& s, const SeriesStore& series) {
  constexpr double kWindows = 50'000, kSlowLeast = 1.5, kSlowMost = 20, kPreset = 10, kAlike = 1.5;
  if (s.history_size > 0) return false;
  const double fitted = kWindows / static_cast<double>(series.size() * s.horizon);
  if (is_slow(s.freq.value_or(series.frequency()))) {
    s.history_size = std::round(10 * std::clamp(fitted, kSlowLeast, kSlowMost)) / 10;
    return true;
  }
  if (fitted < kAlike * kPreset) return false;
  s.history_size = std::round(fitted);
  return true;
}

bool fit_lookbacks(ForecastSettings& s, const rows::Frequency& frequency, std::vector<int64_t> lengths) {
  constexpr int64_t kShort = 15;  // horizons
  constexpr int64_t kLeast = 2;
  if (s.preset != Preset::fast || !s.lookbacks.empty() || s.input_size > 0) return false;
  if (season_for(s, frequency) >= kLeast * s.horizon) return false;  // the loss MASE needs longer windows
  const auto median = lengths.begin() + static_cast<std::ptrdiff_t>(lengths.size() / 2);
  std::nth_element(lengths.begin(), median, lengths.end());
  if (*median >= kShort * s.horizon) return false;
  s.lookbacks = {kLeast, 3, 4, 5};
  return true;
}

std::vector<double> tried_histories(double first, const ForecastSettings& s, const SeriesStore& series) {
  constexpr double kAlike = 1.5;
  size_t points = 0;
  for (int64_t i = 0; i < series.size(); ++i) points = std::max(points, series.series(i).size());
  const double longest = std::ceil(static_cast<double>(points) / static_cast<double>(s.horizon));
  const double own = std::min(first, longest);
  std::vector<double> all;
  for (const double history :
       is_slow(s.freq.value_or(series.frequency())) ? std::vector{1.5, 5.0, 20.0} : std::vector{10.0, 100.0})
    if (const double other = std::min(history, longest); other > kAlike * own || own > kAlike * other)
      all.push_back(history);
  return all;
}

std::vector<int64_t> tried_steps(int64_t steps, int64_t origins) {
  if (origins < 2) return {std::max<int64_t>(1, steps / 5)};
  std::vector<int64_t> all;
  for (const int64_t part : {50, 15, 5, 1})
    if (const int64_t some = std::max<int64_t>(1, steps / part); all.empty() || some > all.back()) all.push_back(some);
  return all;
}

bool keeps_more_steps(const std::vector<double>& errors) {
  constexpr double kLost = 0.15;
  const double lowest = *std::min_element(errors.begin(), errors.end() - 1);
  return errors.back() < lowest || (lowest < 1 && errors.back() <= lowest + kLost * (1 - lowest));
}

int64_t further_steps(int64_t steps, const std::vector<double>& errors) {
  constexpr double kMuchBetter = 0.95;
  if (errors.size() < 2 || !(errors.back() < kMuchBetter * errors[errors.size() - 2])) return 0;
  return 10 * steps / 3;
}

Trial try_ensemble(EnsembleDevice& on, const ForecastSettings& s, const SeriesStore& series, const NbeatsModel& members,
                   int64_t origins, bool combine, TrialBaselines& baselines, const std::filesystem::path& state,
                   const OnEnsembleProgress& progress, const std::atomic<bool>* stop) {
  Trial trial;
  trial.origins = origins;
  const HeldOut known = hold_out(series, s.horizon, origins, fewest_points(members.season));
  NbeatsModel model = members;
  const CovariateSpec& covariates = members.covariates;
  if (!covariates.empty()) model.covariates = fit_covariates(known.known, covariates.calendar, covariates.history);
  const TrainedEnsemble trained = train_ensemble(on, s, known.known, model, state, progress, stop);
  trial.seconds = trained.seconds;
  trial.interrupted = trained.interrupted;
  if (trial.interrupted) return trial;
  TrialRun run(series, s.horizon, members.season);
  for (int64_t k = origins; k >= 1; --k) run.add_origin(k, on, model, baselines[k], stop);
  run.score(combine, trial);
  return trial;
}

}  // namespace brim::forecast
