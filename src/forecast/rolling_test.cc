// SPDX-License-Identifier: Apache-2.0
// Parts of a rolling run: fold grid, shrinkage and intervals, and that none of them uses future data.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "base/test_files.h"
#include "forecast/fold_grid.h"
#include "forecast/intervals.h"
#include "forecast/metrics.h"
#include "forecast/shrinkage.h"

namespace brim::forecast {
namespace {

constexpr float kMissing = std::numeric_limits<float>::quiet_NaN();

TEST(FoldGrid, CutoffsLeaveAFullHorizon) {
  FoldGridOptions o;
  o.horizon = 5;
  o.folds = 4;
  o.step = 3;
  o.refit = 2;
  const auto folds = fold_grid(o, 100, 199);
  ASSERT_EQ(folds.size(), 4u);
  for (size_t k = 0; k < 4; ++k) {
    EXPECT_EQ(folds[k].cutoff, 185 + 3 * static_cast<int64_t>(k));
    EXPECT_EQ(folds[k].train_to, folds[k].cutoff);
    EXPECT_EQ(folds[k].trained_at, static_cast<int64_t>(k) / 2 * 2);
    EXPECT_LT(folds[k].train_from, 100);
  }
  o.last_cutoff = 150;
  EXPECT_EQ(fold_grid(o, 100, 199).back().cutoff, 150);
}

TEST(FoldGrid, AppliesSlidingWindowsAndGaps) {
  FoldGridOptions o;
  o.horizon = 2;
  o.folds = 2;
  o.window = 10;
  o.gap = 3;
  const Fold fold = fold_grid(o, 0, 49).front();
  EXPECT_EQ(fold.cutoff, 46);
  EXPECT_EQ(fold.train_to, 43);
  EXPECT_EQ(fold.train_from, 34);
  const FoldCut cut = cut_series(fold, o.horizon, 0, 50);
  EXPECT_EQ(cut.train_begin, 34);
  EXPECT_EQ(cut.train_end, 44);
  EXPECT_EQ(cut.known_end, 47);
  EXPECT_EQ(cut.actual_begin, 47);
  EXPECT_EQ(cut.actual_end, 49);
}

TEST(FoldGrid, AlignsSeriesOfDifferentLengthsByTime) {
  FoldGridOptions o;
  o.horizon = 4;
  const Fold fold = fold_grid(o, 0, 99).front();  // cutoff 95
  struct Case {
    int64_t first, length, known, actual_begin, actual_end;
  };
  for (const Case& c : {Case{0, 100, 96, 96, 100}, Case{90, 10, 6, 6, 10}, Case{0, 98, 96, 96, 98},
                        Case{0, 50, 50, 50, 50}, Case{96, 4, 0, 0, 0}}) {
    const FoldCut cut = cut_series(fold, o.horizon, c.first, c.length);
    EXPECT_EQ(cut.known_end, c.known) << c.first;
    EXPECT_EQ(cut.actual_begin, c.actual_begin) << c.first;
    EXPECT_EQ(cut.actual_end, c.actual_end) << c.first;
    EXPECT_LE(cut.train_end, cut.known_end);
  }
}

TEST(FoldGrid, RejectsTooManyFoldsWithThePossibleNumber) {
  FoldGridOptions o;
  o.horizon = 5;
  o.folds = 250;
  const std::string message = error_of(ErrorCode::bad_data, [&] { fold_grid(o, 1, 100); });
  EXPECT_HAS(message,
             "250 folds with step 1 and horizon 5 require 256 points, but the series span 100; set `folds=94` or less");
  o.folds = 94;
  EXPECT_EQ(fold_grid(o, 1, 100).front().cutoff, 2);
  o.horizon = 100;
  EXPECT_HAS(error_of(ErrorCode::bad_data, [&] { fold_grid(o, 1, 100); }), "shorter `horizon`");
}

TEST(Shrinkage, RecoversTheTrueFactor) {
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal;
  Shrinkage fit(2);
  for (int64_t c = 0; c < 500; ++c) {
    const double level = 100 + static_cast<double>(c), a = normal(random), b = normal(random);
    // Step 1 realises a third of the forecast move; step 2 is noise, so the last value is best.
    fit.add(c, level, 1, std::vector<double>{level + a, level + b},
            std::vector<float>{static_cast<float>(level + a / 3), static_cast<float>(level + normal(random))});
  }
  const auto factors = fit.factors(1000);
  EXPECT_NEAR(factors[0], 1.0 / 3, 1e-3);
  EXPECT_LT(factors[1], 0.2);
  std::vector<double> forecast = {13, 20};
  shrink(forecast, 10, std::vector<double>{0.5, 0});
  EXPECT_EQ(forecast, (std::vector<double>{11.5, 10}));
}

// Compares with every factor of a grid.
TEST(Shrinkage, MinimisesTheError) {
  std::mt19937_64 random(2);
  std::normal_distribution<double> normal;
  for (int round = 0; round < 20; ++round) {
    Shrinkage fit(1);
    std::vector<std::pair<double, double>> moves;
    for (int i = 0; i < 15; ++i) {
      const double scale = 0.5 + std::abs(normal(random)), f = normal(random), y = normal(random) + 0.5 * f;
      const auto came = static_cast<float>(y);
      fit.add(i, 0, scale, std::vector<double>{f}, std::vector<float>{came});
      moves.emplace_back(f / scale, static_cast<double>(came) / scale);
    }
    const auto error = [&](double factor) {
      double sum = 0;
      for (const auto& [f, y] : moves) sum += std::abs(factor * f - y);
      return sum;
    };
    const double found = error(fit.factors(100)[0]);
    for (int i = 0; i <= 1000; ++i) EXPECT_LE(found, error(i / 1000.0) + 1e-12);
  }
}

TEST(Intervals, UseConformalPredictionRanks) {
  ConformalIntervals intervals(1);
  for (int i = 1; i <= 9; ++i)
    intervals.add(i, 2, std::vector<double>{0}, std::vector<float>{static_cast<float>(2 * i)});
  EXPECT_EQ(intervals.half_widths(100, 80)[0], 8);  // ⌈10·0.8⌉ of 1 … 9
  EXPECT_EQ(intervals.half_widths(100, 90)[0], 9);
  EXPECT_TRUE(std::isnan(intervals.half_widths(100, 95)[0]));  // needs 19 errors
  EXPECT_EQ(intervals.errors_known(100), 9);
  EXPECT_EQ(intervals.errors_known(5), 4);  // the error of cutoff 5 is known at 6
  EXPECT_EQ(intervals.half_widths(5, 80)[0], 4);
}

TEST(Intervals, ReachTheNominalCoverage) {
  std::mt19937_64 random(3);
  std::normal_distribution<double> normal;
  ConformalIntervals intervals(2);
  Coverage coverage;
  for (int64_t c = 0; c < 3000; ++c) {
    const double scale = 1 + static_cast<double>(c % 7);
    const std::vector<float> came = {static_cast<float>(scale * normal(random)),
                                     static_cast<float>(3 * scale * normal(random))};
    const auto widths = intervals.half_widths(c, 80);
    if (c > 100)
      coverage.add(std::vector<double>{-widths[0] * scale, -widths[1] * scale},
                   std::vector<double>{widths[0] * scale, widths[1] * scale}, came);
    intervals.add(c, scale, std::vector<double>{0, 0}, came);
  }
  EXPECT_NEAR(coverage.share(), 0.8, 0.015);
}

// Overwrites everything after a cutoff: no bit of the inputs of the fold may change.
TEST(Rolling, FutureDataDoesNotChangeFittedValues) {
  std::mt19937_64 random(4);
  std::normal_distribution<double> normal;
  std::vector<float> series;
  for (int i = 0; i < 200; ++i)
    series.push_back((series.empty() ? 100.F : series.back()) + static_cast<float>(normal(random)));
  const auto fitted = [&](const std::vector<float>& values, int64_t cutoff) {
    Shrinkage shrinkage(3);
    ConformalIntervals intervals(3);
    FoldGridOptions o;
    o.horizon = 3;
    o.folds = 100;
    for (const Fold& fold : fold_grid(o, 0, static_cast<int64_t>(values.size()) - 1)) {
      const FoldCut cut = cut_series(fold, o.horizon, 0, static_cast<int64_t>(values.size()));
      const auto known = std::span(values).first(static_cast<size_t>(cut.known_end));
      const double last = static_cast<double>(known.back());
      const double slope = last - static_cast<double>(known[known.size() - 2]);
      const std::vector<double> forecast = {last + slope, last + 2 * slope, last + 3 * slope};
      const auto actual = std::span(values).subspan(static_cast<size_t>(cut.actual_begin), 3);
      const double scale = seasonal_scale(known, 1);
      shrinkage.add(fold.cutoff, last, scale, forecast, actual);
      intervals.add(fold.cutoff, scale, forecast, actual);
    }
    auto all = shrinkage.factors(cutoff);
    const auto widths = intervals.half_widths(cutoff, 80);
    all.insert(all.end(), widths.begin(), widths.end());
    return all;
  };
  const int64_t cutoff = 150;
  const auto clean = fitted(series, cutoff);
  for (const float poison : {1e30F, kMissing}) {
    std::vector<float> poisoned = series;
    std::fill(poisoned.begin() + cutoff + 1, poisoned.end(), poison);
    EXPECT_EQ(fitted(poisoned, cutoff), clean);
  }
  std::vector<float> past = series;
  past[100] += 50;
  EXPECT_NE(fitted(past, cutoff), clean);  // the past does change it
}

}  // namespace
}  // namespace brim::forecast
