// SPDX-License-Identifier: Apache-2.0
#include "forecast/roll_score.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/thread_pool.h"
#include "forecast/baselines.h"
#include "forecast/held_out.h"
#include "forecast/shrinkage.h"

namespace brim::forecast {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

// Incremental seasonal_scale of the known points, for ascending cutoffs.
class GrowingScale {
 public:
  double at(std::span<const float> values, int64_t known, int64_t season) {
    for (next_ = std::max(next_, season); next_ < known; ++next_) {
      const double step = static_cast<double>(values[static_cast<size_t>(next_)]) -
                          static_cast<double>(values[static_cast<size_t>(next_ - season)]);
      if (std::isnan(step)) continue;
      sum_ += std::abs(step);
      ++count_;
    }
    return count_ == 0 ? kNone : sum_ / static_cast<double>(count_);
  }

 private:
  int64_t next_ = 0, count_ = 0;
  double sum_ = 0;
};

double last_present(std::span<const float> values, int64_t known) {
  for (int64_t k = known; k-- > 0;)
    if (const float v = values[static_cast<size_t>(k)]; !std::isnan(v)) return static_cast<double>(v);
  return kNone;
}

struct PairScores {
  Mean smape, mase, mae, mape;
  void add(std::span<const double> forecast, std::span<const float> actual, double scale) {
    smape.add(forecast::smape(forecast, actual));
    mase.add(forecast::mase(forecast, actual, scale));
    mae.add(forecast::mae(forecast, actual));
    mape.add(forecast::mape(forecast, actual));
  }
  Scores scores() const { return {smape.value(), mase.value(), mae.value(), mape.value(), kNone}; }
};

// Shrinkage factors of a fold: fitted, none, or fixed.
std::vector<double> factors_at(const std::string& shrink, const Shrinkage& fitted, int64_t cutoff, int64_t horizon) {
  if (shrink == "auto") return fitted.factors(cutoff);
  double factor = 1;
  if (shrink != "none") std::from_chars(shrink.data(), shrink.data() + shrink.size(), factor);
  return std::vector<double>(static_cast<size_t>(horizon), factor);
}

class RollScorer {
 public:
  RollScorer(const ForecastSettings& s, const SeriesStore& series, const NbeatsModel& members, const RollPlan& plan,
             const RollRun& run)
      : s_(s),
        series_(series),
        members_(members),
        plan_(plan),
        run_(run),
        horizon_(members.horizon),
        levels_(interval_levels(s)),
        adapted_(levels_),
        pool_(s.threads > 0 ? s.threads : hardware_threads()),
        shrinkage_(horizon_),
        intervals_(horizon_),
        scales_(static_cast<size_t>(series.size())),
        by_series_(scales_.size()),
        naive_by_series_(scales_.size()),
        coverage_(levels_.size()),
        pinball_(levels_.size()),
        step_errors_(static_cast<size_t>(horizon_)),
        naive_step_errors_(step_errors_.size()) {
    for (const NbeatsLane& lane : members.lanes)
      longest_lookback_ = std::max<int64_t>(longest_lookback_, lane.spec.lookback);
    for (const Baseline b : s.baselines)
      if (b == Baseline::theta || b == Baseline::ets) fitted_.push_back({b, {}});
  }

  RollScore score(const std::function<void(const Fold&, const RolledForecast&)>& row) {
    calibrate();
    RollScore all;
    all.horizon = horizon_;
    all.season = members_.season;
    for (const Fold& fold : plan_.folds)
      all.folds.push_back(score_fold(fold, [&](const RolledForecast& f) {
        row(fold, f);
        for (const float y : f.actual) all.points += std::isnan(y) ? 0 : 1;
      }));
    compare(all);
    all.model = model_.scores();
    all.naive = all.baselines[0].scores;
    all.snaive = all.baselines[1].scores;
    all.against_naive = all.baselines[0].test;
    all.against_snaive = all.baselines[1].test;
    all.crps = crps_.value();
    all.scaled_crps = scaled_crps_.value();
    all.skill_naive = skill(all.model.mase, all.naive.mase);
    all.skill_snaive = skill(all.model.mase, all.snaive.mase);
    for (size_t l = 0; l < levels_.size(); ++l)
      all.levels.push_back({levels_[l], coverage_[l].share(), pinball_[l].value()});
    for (size_t h = 0; h < step_errors_.size(); ++h) {
      all.mase_by_step.push_back(step_errors_[h].value());
      all.naive_by_step.push_back(naive_step_errors_[h].value());
    }
    for (size_t i = 0; i < by_series_.size(); ++i) {
      if (by_series_[i].mae.count == 0) continue;
      const Scores own = by_series_[i].scores();
      const double naive = naive_by_series_[i].mase.value();
      all.series.push_back({series_.id(static_cast<int64_t>(i)), by_series_[i].mae.count, own.mase, own.mae, naive,
                            skill(own.mase, naive)});
    }
    draw(plan_.folds.back(), all.folds.back(), all.drawn);
    return all;
  }

 private:
  // A calibration window with the unshrunk forecast.
  struct Seen {
    int64_t cutoff;
    double last, scale;
    std::vector<double> forecast;
    std::vector<float> actual;
  };
  struct FoldCoverage {
    int64_t cutoff;
    std::vector<Coverage> levels;
  };
  struct FittedSum {
    Baseline baseline;
    PairScores sum;
  };

  // Scores of the baselines over all folds, each with a test of the model against it.
  void compare(RollScore& all) const {
    // Errors of overlapping horizons are correlated.
    const int64_t lags = (horizon_ + s_.step - 1) / s_.step - 1;
    const auto add = [&](Baseline baseline, const PairScores& sum, auto scores_of) {
      std::vector<double> differences;
      for (const FoldScore& f : all.folds)
        if (const double d = f.model.mase - scores_of(f).mase; std::isfinite(d)) differences.push_back(d);
      all.baselines.push_back({baseline, sum.scores(), diebold_mariano(differences, lags)});
    };
    add(Baseline::naive, naive_, [](const FoldScore& f) { return f.naive; });
    add(Baseline::snaive, snaive_, [](const FoldScore& f) { return f.snaive; });
    for (size_t i = 0; i < fitted_.size(); ++i)
      add(fitted_[i].baseline, fitted_[i].sum, [i](const FoldScore& f) { return f.fitted[i]; });
    for (size_t i = 1; i < all.baselines.size(); ++i)
      if (all.baselines[i].scores.mase < all.baselines[all.best].scores.mase) all.best = i;
  }

  // Known points for a baseline: enough for ten seasons, and for one present value.
  std::span<const float> recent(const ops::WindowPick& window, int64_t least) const {
    const auto known = series_.series(window.series).first(static_cast<size_t>(window.cut));
    const auto points = known.last(std::min(known.size(), static_cast<size_t>(std::max(10 * members_.season, least))));
    if (std::any_of(points.begin(), points.end(), [](float v) { return !std::isnan(v); })) return points;
    return known.last(std::min(known.size(), static_cast<size_t>(longest_lookback_)));  // as windows_at()
  }

  // Adds the forecasts of Theta and ETS from the cutoff of a fold.
  void measure_fitted(const std::vector<ops::WindowPick>& windows, FoldScore& out) {
    constexpr int64_t kLeast = 300;  // smoothing forgets older points
    for (FittedSum& fitted : fitted_) {
      std::vector<std::vector<double>> forecasts(windows.size());
      pool_.parallel_for(windows.size(), [&](size_t w, int) {
        forecasts[w] = forecast_baseline(fitted.baseline, recent(windows[w], kLeast), horizon_, members_.season);
      });
      PairScores fold;
      for (size_t w = 0; w < windows.size(); ++w)
        for (PairScores* scores : {&fold, &fitted.sum})
          scores->add(forecasts[w], actual_of(windows[w]), scale_of(windows[w]));
      out.fitted.push_back(fold.scores());
    }
  }

  std::vector<float> actual_of(const ops::WindowPick& window) const {
    const auto values = series_.series(window.series);
    std::vector<float> actual(static_cast<size_t>(horizon_), std::numeric_limits<float>::quiet_NaN());
    for (size_t h = 0; h < actual.size() && static_cast<size_t>(window.cut) + h < values.size(); ++h)
      actual[h] = values[static_cast<size_t>(window.cut) + h];
    return actual;
  }
  double scale_of(const ops::WindowPick& window) {
    return scales_[static_cast<size_t>(window.series)].at(series_.series(window.series), window.cut, members_.season);
  }
  std::span<const double> of_window(const std::vector<double>& all, size_t window) const {
    return std::span(all).subspan(window * static_cast<size_t>(horizon_), static_cast<size_t>(horizon_));
  }

  // Adds the calibration windows for shrinkage and the first intervals; all outcomes were known at the first fold.
  void calibrate() {
    if (plan_.trainings.empty() || plan_.trainings[0].kind != RollTraining::Kind::calibration) return;
    const RollTraining& training = plan_.trainings[0];
    std::vector<Seen> seen;
    size_t first = 0;
    for (const int64_t cutoff : training.cutoffs) {
      const auto windows = windows_at(series_, members_, training.fold, cutoff);
      const std::vector<double> raw = rolled_medians(run_, members_, 0, first, windows.size());
      for (size_t w = 0; w < windows.size(); ++w) {
        const auto own = of_window(raw, w);
        seen.push_back({cutoff,
                        last_present(series_.series(windows[w].series), windows[w].cut),
                        scale_of(windows[w]),
                        {own.begin(), own.end()},
                        actual_of(windows[w])});
        shrinkage_.add(cutoff, seen.back().last, seen.back().scale, seen.back().forecast, seen.back().actual);
      }
      first += windows.size();
    }
    for (const int64_t cutoff : training.cutoffs) {
      const auto factors = factors_without(cutoff, seen);
      for (Seen& window : seen) {
        if (window.cutoff != cutoff) continue;
        std::vector<double> shrunk = window.forecast;
        shrink(shrunk, window.last, factors);
        intervals_.add(window.cutoff, window.scale, shrunk, window.actual);
      }
    }
  }

  // Factors for a calibration cutoff from windows that do not overlap its own, because errors after a fit to the same
  // windows are too small for intervals.
  std::vector<double> factors_without(int64_t cutoff, const std::vector<Seen>& seen) const {
    const int64_t now = plan_.folds.front().cutoff;
    if (s_.shrink != "auto") return factors_at(s_.shrink, shrinkage_, now, horizon_);
    Shrinkage others(horizon_);
    bool any = false;
    for (const Seen& window : seen)
      if (std::abs(window.cutoff - cutoff) >= horizon_) {
        others.add(window.cutoff, window.last, window.scale, window.forecast, window.actual);
        any = true;
      }
    return (any ? others : shrinkage_).factors(now);
  }

  // Index of the fold's first forecast among those of its training.
  size_t first_window(const Fold& fold) const {
    const RollTraining& training =
        plan_.trainings[static_cast<size_t>(plan_.training_of[static_cast<size_t>(fold.index)])];
    size_t first = 0;
    for (const int64_t cutoff : training.cutoffs) {
      if (cutoff == fold.cutoff) break;
      first += windows_at(series_, members_, training.fold, cutoff).size();
    }
    return first;
  }

  // Widths for the adapted levels: after folds whose intervals covered too little, wider than by the errors alone
  // (adaptive conformal inference, Gibbs and Candès, 2021). Only folds with known outcomes count.
  std::vector<std::vector<double>> widths_at(int64_t cutoff) {
    constexpr double kRate = 0.1, kLeast = 1, kMost = 99.9;
    for (const FoldCoverage& fold : covered_)
      for (size_t l = 0; l < levels_.size() && fold.cutoff + horizon_ <= cutoff; ++l)
        if (const double share = fold.levels[l].share(); std::isfinite(share))
          adapted_[l] = std::clamp(adapted_[l] + kRate * (levels_[l] - 100 * share), kLeast, kMost);
    std::erase_if(covered_, [&](const FoldCoverage& fold) { return fold.cutoff + horizon_ <= cutoff; });
    const auto known = static_cast<double>(intervals_.errors_known(cutoff));
    std::vector<std::vector<double>> widths;
    for (size_t l = 0; l < levels_.size(); ++l) {
      const double most = std::max(levels_[l], 100 * known / (known + 1));
      widths.push_back(intervals_.half_widths(cutoff, std::min(adapted_[l], most)));
    }
    return widths;
  }

  RolledForecast rolled(const ops::WindowPick& window, std::span<const double> own, const std::vector<double>& factors,
                        const std::vector<std::vector<double>>& widths) {
    RolledForecast f;
    f.series = window.series;
    f.known = window.cut;
    f.forecast.assign(own.begin(), own.end());
    f.actual = actual_of(window);
    const double scale = scale_of(window);
    shrink(f.forecast, last_present(series_.series(window.series), window.cut), factors);
    for (const auto& width : widths) {
      IntervalBounds bounds = bounds_around(f.forecast, width, scale);
      f.low.push_back(std::move(bounds.low));
      f.high.push_back(std::move(bounds.high));
    }
    return f;
  }

  // The best and worst series are known only after the last fold, so three of its forecasts are recomputed.
  void draw(const Fold& fold, const FoldScore& score, std::vector<DrawnForecast>& drawn) {
    const auto t = static_cast<size_t>(plan_.training_of[static_cast<size_t>(fold.index)]);
    const auto windows = windows_at(series_, members_, plan_.trainings[t].fold, fold.cutoff);
    std::vector<std::pair<double, size_t>> ranked;  // (MASE, window)
    for (size_t w = 0; w < windows.size(); ++w)
      if (const double mase = by_series_[static_cast<size_t>(windows[w].series)].mase.value(); std::isfinite(mase))
        ranked.emplace_back(mase, w);
    if (ranked.empty()) return;
    std::sort(ranked.begin(), ranked.end());
    const auto widths = widths_at(fold.cutoff);
    const auto add = [&](const char* which, const std::pair<double, size_t>& one) {
      const std::vector<double> raw = rolled_medians(run_, members_, t, first_window(fold) + one.second, 1);
      drawn.push_back({which, one.first, rolled(windows[one.second], raw, score.factors, widths)});
    };
    add("Best", ranked.front());
    if (ranked.size() > 2) add("Median", ranked[ranked.size() / 2]);
    if (ranked.size() > 1) add("Worst", ranked.back());
  }

  FoldScore score_fold(const Fold& fold, const std::function<void(const RolledForecast&)>& row) {
    const auto t = static_cast<size_t>(plan_.training_of[static_cast<size_t>(fold.index)]);
    const RollTraining& training = plan_.trainings[t];
    const auto windows = windows_at(series_, members_, training.fold, fold.cutoff);
    const std::vector<double> raw = rolled_medians(run_, members_, t, first_window(fold), windows.size());
    FoldScore out;
    out.refitted = fold.trained_at == fold.index;
    out.series = static_cast<int64_t>(windows.size());
    out.left_out = series_.size() - out.series;
    out.steps = training.steps;
    out.factors = factors_at(s_.shrink, shrinkage_, fold.cutoff, horizon_);
    const auto widths = widths_at(fold.cutoff);
    PairScores model, naive, snaive;
    FoldCoverage covered{fold.cutoff, std::vector<Coverage>(levels_.size())};
    for (size_t w = 0; w < windows.size(); ++w) {
      const auto own = of_window(raw, w);
      const double last = last_present(series_.series(windows[w].series), windows[w].cut), scale = scale_of(windows[w]);
      if (w == 0) out.cutoff = series_.time_text(windows[w].series, windows[w].cut - 1);
      const RolledForecast f = rolled(windows[w], own, out.factors, widths);
      measure(f, scale, model, naive, snaive, covered.levels);
      // These become visible only at later cutoffs.
      shrinkage_.add(fold.cutoff, last, scale, own, f.actual);
      intervals_.add(fold.cutoff, scale, f.forecast, f.actual);
      row(f);
    }
    out.model = model.scores();
    out.naive = naive.scores();
    out.snaive = snaive.scores();
    out.skill_naive = skill(out.model.mase, out.naive.mase);
    out.skill_snaive = skill(out.model.mase, out.snaive.mase);
    out.coverage = covered.levels.empty() ? kNone : covered.levels[0].share();
    covered_.push_back(std::move(covered));
    measure_fitted(windows, out);
    return out;
  }

  void measure(const RolledForecast& f, double scale, PairScores& model, PairScores& naive, PairScores& snaive,
               std::vector<Coverage>& fold) {
    constexpr int64_t kLeast = 1000;
    const auto history =
        recent({static_cast<int32_t>(f.series), static_cast<int32_t>(f.known)}, std::max(kLeast, longest_lookback_));
    const auto last_value = forecast_baseline(Baseline::naive, history, horizon_, 1);
    const auto last_season = forecast_baseline(Baseline::snaive, history, horizon_, members_.season);
    const auto i = static_cast<size_t>(f.series);
    for (PairScores* scores : {&model, &model_, &by_series_[i]}) scores->add(f.forecast, f.actual, scale);
    for (PairScores* scores : {&naive, &naive_, &naive_by_series_[i]}) scores->add(last_value, f.actual, scale);
    for (PairScores* scores : {&snaive, &snaive_}) scores->add(last_season, f.actual, scale);
    for (size_t h = 0; h < f.forecast.size(); ++h) {
      const double y = static_cast<double>(f.actual[h]);
      if (std::isnan(y) || !(scale > 0)) continue;
      step_errors_[h].add(std::abs(f.forecast[h] - y) / scale);
      naive_step_errors_[h].add(std::abs(last_value[h] - y) / scale);
    }
    Crps crps;
    crps.add(0.5, pinball(f.forecast, f.actual, 0.5));
    bool known = !levels_.empty();
    for (size_t l = 0; l < levels_.size(); ++l) {
      if (std::any_of(f.low[l].begin(), f.low[l].end(), [](double v) { return std::isnan(v); })) {
        known = false;
        continue;
      }
      coverage_[l].add(f.low[l], f.high[l], f.actual);
      fold[l].add(f.low[l], f.high[l], f.actual);
      const double outside = (1 - levels_[l] / 100) / 2, below = pinball(f.low[l], f.actual, outside),
                   above = pinball(f.high[l], f.actual, 1 - outside);
      pinball_[l].add((below + above) / 2);
      crps.add(outside, below);
      crps.add(1 - outside, above);
    }
    if (!known) return;
    const double score = crps.value();
    crps_.add(score);
    if (scale > 0) scaled_crps_.add(score / scale);
  }

  const ForecastSettings& s_;
  const SeriesStore& series_;
  const NbeatsModel& members_;
  const RollPlan& plan_;
  const RollRun& run_;
  const int64_t horizon_;
  int64_t longest_lookback_ = 0;
  const std::vector<double> levels_;
  std::vector<double> adapted_;        // levels at which widths are taken
  std::vector<FoldCoverage> covered_;  // folds not yet used to adapt the levels
  ThreadPool pool_;
  Shrinkage shrinkage_;
  ConformalIntervals intervals_;
  std::vector<GrowingScale> scales_;
  PairScores model_, naive_, snaive_;
  std::vector<FittedSum> fitted_;
  Mean crps_, scaled_crps_;
  std::vector<PairScores> by_series_, naive_by_series_;
  std::vector<Coverage> coverage_;
  std::vector<Mean> pinball_, step_errors_, naive_step_errors_;
};

}  // namespace

RollScore score_roll(const ForecastSettings& s, const SeriesStore& series, const NbeatsModel& members,
                     const RollPlan& plan, const RollRun& run,
                     const std::function<void(const Fold&, const RolledForecast&)>& row) {
  return RollScorer(s, series, members, plan, run).score(row);
}

}  // namespace brim::forecast
