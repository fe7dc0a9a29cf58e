// SPDX-License-Identifier: Apache-2.0
// Baselines of all series, their choice by cross-validation, and intervals from held-out horizons.
#include "forecast/baseline_choice.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/test_files.h"
#include "forecast/held_out.h"
#include "forecast/metrics.h"
#include "forecast/settings.h"
#include "forecast/trial.h"

namespace brim::forecast {
namespace {

rows::SeriesTable empty_table() {
  rows::SeriesTable table;
  table.numbered = true;
  return table;
}

void add_series(rows::SeriesTable& table, const std::vector<float>& values) {
  table.ids.push_back("s" + std::to_string(table.ids.size()));
  table.values.insert(table.values.end(), values.begin(), values.end());
  table.begin.push_back(static_cast<int64_t>(table.values.size()));
  table.first.push_back(1);
}

// Random walks with independent steps.
SeriesStore walks(int series, int points) {
  rows::SeriesTable table = empty_table();
  std::mt19937 random(3);
  std::normal_distribution<double> step(0, 1);
  for (int i = 0; i < series; ++i) {
    std::vector<float> values;
    double level = 100;
    for (int t = 0; t < points; ++t) values.push_back(static_cast<float>(level += step(random)));
    add_series(table, values);
  }
  return SeriesStore(std::move(table));
}

TEST(BaselineChoice, DoesNotDependOnThreads) {
  const SeriesStore series = walks(70, 40);
  for (const Baseline b : {Baseline::snaive, Baseline::theta, Baseline::ets, Baseline::automatic}) {
    const auto one = forecast_all(b, series, {4, 1, 1, {}, nullptr});
    const auto three = forecast_all(b, series, {4, 1, 3, {}, nullptr});
    EXPECT_EQ(one.values, three.values) << baseline_name(b);
    EXPECT_EQ(one.chosen, three.chosen);
  }
}

TEST(BaselineChoice, PrefersSeasonalNaiveIfSeasonsRepeat) {
  rows::SeriesTable table = empty_table();
  for (int i = 0; i < 8; ++i) {
    std::vector<float> values;
    for (int t = 0; t < 36; ++t) values.push_back(static_cast<float>((t * (7 + i)) % 4 * (t % 4 == 1 ? -3 : 2)));
    add_series(table, values);
  }
  const SeriesStore series(std::move(table));
  const auto chosen = forecast_all(Baseline::automatic, series, {4, 4, 2, {}, nullptr});
  for (int64_t i = 0; i < series.size(); ++i)
    for (size_t h = 0; h < 4; ++h) EXPECT_NEAR(chosen.values[static_cast<size_t>(i)][h], series.series(i)[32 + h], 0.3);
}

TEST(BaselineChoice, ForecastsShortAndMissingSeries) {
  constexpr float kGap = std::numeric_limits<float>::quiet_NaN();
  rows::SeriesTable table = empty_table();
  add_series(table, {5});
  add_series(table, {1, kGap, 3});
  add_series(table, {1, 2, kGap, kGap, 5, 6, 7, 8, 9, 10});
  const SeriesStore series(std::move(table));
  for (const Baseline b : {Baseline::theta, Baseline::ets, Baseline::automatic}) {
    const auto all = forecast_all(b, series, {3, 4, 1, {}, nullptr});
    EXPECT_EQ(all.values[0], (std::vector<double>{5, 5, 5})) << baseline_name(b);
    for (const auto& values : all.values)
      for (const double v : values) EXPECT_TRUE(std::isfinite(v));
    EXPECT_GT(all.values[2][2], 9.9) << baseline_name(b);
  }
}

TEST(BaselineChoice, StopsBetweenBlocks) {
  const SeriesStore series = walks(3, 30);
  const std::atomic<bool> stop{true};
  error_of(ErrorCode::interrupted, [&] { forecast_all(Baseline::ets, series, {2, 1, 1, {}, &stop}); });
}

TEST(HeldOut, KeepsSeriesThatAreLongEnough) {
  rows::SeriesTable table = empty_table();
  add_series(table, {1, 2, 3, 4, 5, 6, 7, 8});
  add_series(table, {1, 2, 3, 4, 5});
  const SeriesStore series(std::move(table));
  const HeldOut origin = hold_out(series, 2, 2, 2);
  ASSERT_EQ(origin.of, std::vector<int64_t>{0}) << "the other is too short";
  EXPECT_EQ(origin.known.series(0).size(), 4u);
  EXPECT_EQ(origin.actual[0], (std::vector<float>{5, 6}));
  EXPECT_EQ(hold_out(series, 2, 1, 2).of, (std::vector<int64_t>{0, 1}));
}

TEST(HeldOut, EndsSeriesAtTheirLastPresentPoint) {
  constexpr float kGap = std::numeric_limits<float>::quiet_NaN();
  rows::SeriesTable table = empty_table();
  add_series(table, {1, 2, 3, kGap, 5, 6, 7, 8});
  add_series(table, {1, 2, kGap, kGap, 5, 6, 7, 8});  // the same points are known at the origin before
  const SeriesStore series(std::move(table));
  const HeldOut origin = hold_out(series, 2, 2, 2);
  ASSERT_EQ(origin.of, std::vector<int64_t>{0});
  EXPECT_EQ(origin.known.series(0).size(), 3u);
  EXPECT_TRUE(std::isnan(origin.actual[0][0]));
  EXPECT_EQ(origin.actual[0][1], 5);
  EXPECT_EQ(points_before(series.series(0), 2, 2, 4), 0);
  EXPECT_EQ(hold_out(series, 2, 1, 2).of, (std::vector<int64_t>{0, 1}));
}

TEST(HeldOut, IntervalsOfRandomWalksHaveTheirLevel) {
  const SeriesStore series = walks(600, 40);
  const BaselineOptions how{5, 1, 2, {}, nullptr};
  const HeldOut last = hold_out(series, 5, 1, 3);
  const OriginForecasts naive = [&](const HeldOut& origin) {
    return forecast_all(Baseline::naive, origin.known, how).values;
  };
  const ConformalIntervals errors = held_out_errors(last.known, 5, 1, 2, naive);
  const auto forecasts = naive(last);
  for (const double level : {80.0, 95.0}) {
    const std::vector<double> widths = half_widths_for(errors, level);
    EXPECT_GT(widths[4], 1.5 * widths[0]) << "errors of a walk grow with the square root of the steps";
    Coverage coverage;
    for (size_t i = 0; i < forecasts.size(); ++i) {
      const double scale = interval_scale(last.known.series(static_cast<int64_t>(i)), 1);
      const IntervalBounds bounds = bounds_around(forecasts[i], widths, scale);
      coverage.add(bounds.low, bounds.high, last.actual[i]);
    }
    EXPECT_NEAR(coverage.share(), level / 100, 0.03);
  }
  EXPECT_HAS(error_of(ErrorCode::bad_data, [&] { half_widths_for(held_out_errors(walks(4, 20), 5, 1, 2, naive), 95); }),
             "`level=95` requires 19 held-out errors per step ahead, but only 8 are known");
}

TEST(Trial, HoldsOutAsManyHorizonsAsMostSeriesAllow) {
  ForecastSettings s;
  s.horizon = 5;
  EXPECT_EQ(trial_origins(s, walks(3, 20), 1), 2);
  EXPECT_EQ(trial_origins(s, walks(3, 12), 1), 1) << "one horizon must be left for training";
  EXPECT_EQ(trial_origins(s, walks(3, 9), 1), 0);
  s.held_out = 0;
  EXPECT_EQ(trial_origins(s, walks(3, 20), 1), 0);
}

TEST(Trial, HoldsOutMoreHorizonsOfLongSeries) {
  ForecastSettings s;
  s.horizon = 5;
  EXPECT_EQ(trial_origins(s, walks(8, 1000), 1), 13) << "104 forecasts";
  EXPECT_EQ(trial_origins(s, walks(8, 500), 1), 10) << "a tenth of the points";
  EXPECT_EQ(trial_origins(s, walks(1, 5000), 1), 20);
  EXPECT_EQ(trial_origins(s, walks(60, 200), 1), 4);
  EXPECT_EQ(trial_origins(s, walks(60, 100), 1), 2);
  apply_setting(s, "held_out", "2");
  EXPECT_EQ(trial_origins(s, walks(8, 1000), 1), 2) << "given";
}

TEST(Trial, HoldsOutHorizonsOfSeriesWithMissingPoints) {
  ForecastSettings s;
  s.horizon = 5;
  const auto origins = [&](std::vector<int64_t> lengths, int64_t missing_from, int64_t missing_to) {
    rows::SeriesTable table = empty_table();
    for (const int64_t length : lengths) {
      std::vector<float> values;
      for (int64_t t = 0; t < length; ++t)
        values.push_back(t >= missing_from && t < missing_to ? std::numeric_limits<float>::quiet_NaN()
                                                             : static_cast<float>(t % 7));
      add_series(table, values);
    }
    return trial_origins(s, SeriesStore(std::move(table)), 1);
  };
  EXPECT_EQ(origins({30}, 19, 20), 2) << "the series ends one point before the origin";
  EXPECT_EQ(origins({30}, 15, 20), 1) << "a horizon is missing before the second origin";
  EXPECT_EQ(origins({30}, 15, 25), 0);
  EXPECT_EQ(origins({30, 10, 10, 10}, 15, 25), 0) << "without the longest series none is longer than a horizon";
}

TEST(Trial, ErrorsAreRelativeToTheLastValue) {
  const auto scores = [](double smape, double mase) { return Scores{smape, mase, 1, 1, 1}; };
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  EXPECT_DOUBLE_EQ(relative_error(scores(5, 3), scores(10, 2)), 1);
  EXPECT_DOUBLE_EQ(relative_error(scores(5, kNone), scores(10, kNone)), 0.5) << "constant before the origin";
  EXPECT_EQ(relative_error(scores(0, 0), scores(0, 0)), 1);
  EXPECT_EQ(relative_error(scores(0.1, 0.1), scores(0, 0)), std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(relative_error(scores(kNone, kNone), scores(kNone, kNone))));
}

TEST(Trial, FitsHistoryAndStepsToTheData) {
  EXPECT_EQ(tried_steps(1500, 2), (std::vector<int64_t>{30, 100, 300, 1500}));
  EXPECT_EQ(tried_steps(3, 2), (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(tried_steps(1500, 1), std::vector<int64_t>{300}) << "one horizon is not enough to compare them";
  const auto histories = [](double first, const char* frequency, int points) {
    ForecastSettings s;
    s.horizon = 4;
    s.freq = rows::parse_frequency(frequency);
    return tried_histories(first, s, walks(2, points));
  };
  EXPECT_EQ(histories(20, "Y", 100), (std::vector<double>{1.5, 5}));
  EXPECT_EQ(histories(6.4, "Y", 100), (std::vector<double>{1.5, 20}));
  EXPECT_EQ(histories(1000, "D", 4000), (std::vector<double>{10, 100}));
  EXPECT_EQ(histories(1000, "D", 200), std::vector<double>{10}) << "100 horizons are the whole series, too";
  EXPECT_TRUE(histories(20, "D", 40).empty()) << "all are the whole series";
  const SeriesStore small = walks(100, 20), large = walks(2000, 20);
  const auto history = [](const SeriesStore& series, const char* frequency, double given) {
    ForecastSettings s;
    s.horizon = 20;
    s.freq = rows::parse_frequency(frequency);
    s.history_size = given;
    const bool fitted = fit_history(s, series);
    EXPECT_EQ(fitted, s.history_size != given);
    return s.history_size;
  };
  EXPECT_EQ(history(small, "Y", 0), 20);
  EXPECT_EQ(history(large, "Q", 0), 1.5);
  EXPECT_EQ(history(small, "Y", 3), 3) << "given";
  EXPECT_EQ(history(walks(1, 30), "H", 0), 2500);
  EXPECT_EQ(history(small, "D", 0), 25);
  EXPECT_EQ(history(large, "D", 0), 0) << "many windows are left to the preset";
}

TEST(Trial, PrefersMoreStepsUnlessTheyAreWorse) {
  EXPECT_TRUE(keeps_more_steps({0.9, 0.8}));
  EXPECT_TRUE(keeps_more_steps({0.8, 0.82})) << "may be noise";
  EXPECT_FALSE(keeps_more_steps({0.8, 0.82, 0.84})) << "relative to the lowest error";
  EXPECT_FALSE(keeps_more_steps({0.99, 0.995})) << "no better than the naive forecast";
  EXPECT_FALSE(keeps_more_steps({1.2, 1.2}));
  EXPECT_TRUE(keeps_more_steps({1.2, 1.1}));
  EXPECT_FALSE(keeps_more_steps({0.8, std::numeric_limits<double>::quiet_NaN()}));
  EXPECT_EQ(further_steps(1500, {0.9, 0.8, 0.7}), 5000);
  EXPECT_EQ(further_steps(1500, {0.9, 0.8, 0.78}), 0);
  EXPECT_EQ(further_steps(1500, {0.7}), 0) << "given, or the only number to try";
}

TEST(Trial, FitsLookbacksToShortSeries) {
  const auto lookbacks = [](int64_t points, const std::vector<std::pair<const char*, const char*>>& given) {
    ForecastSettings s;
    s.horizon = 4;
    for (const auto& [key, value] : given) apply_setting(s, key, value);
    fit_lookbacks(s, {}, {points, points, points});
    return s.lookbacks;
  };
  EXPECT_EQ(lookbacks(59, {}), (std::vector<int64_t>{2, 3, 4, 5}));
  EXPECT_TRUE(lookbacks(60, {}).empty()) << "left to the preset";
  EXPECT_EQ(lookbacks(59, {{"lookbacks", "7"}}), std::vector<int64_t>{7});
  EXPECT_TRUE(lookbacks(59, {{"input_size", "9"}}).empty());
  EXPECT_TRUE(lookbacks(59, {{"preset", "paper"}}).empty());
  EXPECT_TRUE(lookbacks(59, {{"season", "8"}}).empty()) << "the loss MASE needs more than a season";
}

TEST(HeldOut, ErrorsOfAModelKeepTheirQuantiles) {
  ConformalIntervals errors(1);
  for (int i = 1; i <= 9999; ++i) errors.add(0, 1, std::vector<double>{0}, std::vector<float>{static_cast<float>(i)});
  const ConformalIntervals kept = ConformalIntervals::of_sizes({errors.sizes(0, 99)});
  EXPECT_EQ(kept.errors_known(0), 99);
  for (const double level : {50.0, 80.0, 95.0})
    EXPECT_NEAR(kept.half_widths(0, level)[0], errors.half_widths(1, level)[0], 101) << level;
}

}  // namespace
}  // namespace brim::forecast
