// SPDX-License-Identifier: Apache-2.0
// Baselines and metrics compared with numpy (tools/make_forecast_goldens.py), and cases that the golden data lacks.
#include "forecast/baselines.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <sstream>

#include "base/test_files.h"
#include "forecast/metrics.h"
#include "forecast/seasonal.h"
#include "forecast/series_store.h"
#include "rows/series_reader.h"

namespace brim::forecast {
namespace {

constexpr float kAbsent = std::numeric_limits<float>::quiet_NaN();
const std::string kGoldens = BRIM_SOURCE_DIR "/tests/data/forecast/";

std::vector<std::vector<std::string>> golden_rows(const std::string& name) {
  std::istringstream file(get_file(kGoldens + name));
  std::vector<std::vector<std::string>> rows;
  std::string line;
  std::getline(file, line);  // header
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::vector<std::string>& row = rows.emplace_back();
    for (std::string field; std::getline(fields, field, ',');) row.push_back(field);
  }
  return rows;
}

SeriesStore golden_store(const char* name) { return SeriesStore(rows::read_series({kGoldens + name}, {})); }

TEST(Baselines, MatchNumpy) {
  constexpr int64_t kSeason = 4, kHorizon = 8;
  const SeriesStore train = golden_store("train.csv"), test = golden_store("test.csv");
  int rows = 0;
  for (const auto& row : golden_rows("baselines.csv")) {
    const auto history = train.series(*train.find(row[0]));
    const auto actual = test.series(*test.find(row[0]));
    const auto got = forecast_baseline(*baseline_of(row[1]), history, kHorizon, kSeason);
    for (size_t h = 0; h < got.size(); ++h) EXPECT_NEAR(got[h] / std::stod(row[4 + h]), 1, 1e-10) << row[0] << row[1];
    EXPECT_NEAR(smape(got, actual), std::stod(row[2]), 1e-8) << row[0] << row[1];
    EXPECT_NEAR(mase(got, actual, seasonal_scale(history, kSeason)), std::stod(row[3]), 1e-8) << row[0] << row[1];
    ++rows;
  }
  EXPECT_EQ(rows, 18);
}

TEST(Baselines, SkipMissingPoints) {
  const std::vector<float> history = {1, 2, 3, 4, 5, kAbsent, 7, kAbsent};
  EXPECT_EQ(forecast_baseline(Baseline::naive, history, 2, 4), (std::vector<double>{7, 7}));
  EXPECT_EQ(forecast_baseline(Baseline::snaive, history, 5, 4), (std::vector<double>{5, 2, 7, 4, 5}));
  EXPECT_EQ(forecast_baseline(Baseline::snaive, std::vector<float>{3, 9}, 3, 4), (std::vector<double>{9, 9, 3}));
  EXPECT_EQ(forecast_baseline(Baseline::snaive, history, 2, 1), (std::vector<double>{7, 7}));
}

TEST(Baselines, FitsSkipALongOutage) {
  std::vector<float> history(kFittedPoints + 10, std::nanf(""));
  history[5] = 7;
  for (const Baseline b : {Baseline::theta, Baseline::ets})
    EXPECT_EQ(forecast_baseline(b, history, 2, 1), (std::vector<double>{7, 7})) << baseline_name(b);
}

TEST(Baselines, DetectSeasonalityAsM4Does) {
  std::vector<double> wave;
  for (int i = 0; i < 400; ++i) wave.push_back(10 + std::sin(2 * M_PI * i / 24));
  EXPECT_TRUE(is_seasonal(wave, 24));
  EXPECT_FALSE(is_seasonal(std::span(wave).first(71), 24));
  EXPECT_FALSE(is_seasonal(std::span(wave).first(200), 24));  // R's acf stops at lag 23
  EXPECT_FALSE(is_seasonal(wave, 1));
  EXPECT_FALSE(is_seasonal(std::vector<double>(100, 5.0), 4));
  // A position in the season that is always zero has no index to divide by, so the last value is used.
  std::vector<float> zeros;
  for (int i = 0; i < 40; ++i) zeros.push_back(i % 4 == 3 ? 0.F : 5.F);
  for (const double f : forecast_baseline(Baseline::naive2, zeros, 4, 4)) EXPECT_EQ(f, 0);
}

TEST(ForecastMetrics, IgnoreMissingAndZeroValues) {
  const std::vector<double> forecast = {1, 0, 5};
  const std::vector<float> actual = {2, 0, kAbsent};
  EXPECT_DOUBLE_EQ(smape(forecast, actual), (200.0 / 3 + 0) / 2);
  EXPECT_DOUBLE_EQ(mape(forecast, actual), 50);
  EXPECT_DOUBLE_EQ(mae(forecast, actual), 0.5);
  EXPECT_DOUBLE_EQ(mase(forecast, actual, 0.25), 2);
  EXPECT_TRUE(std::isnan(mase(forecast, actual, 0)));
  EXPECT_TRUE(std::isnan(mae(std::vector<double>{1}, std::vector<float>{kAbsent})));
  EXPECT_DOUBLE_EQ(pinball(forecast, actual, 0.9), (0.9 * 1 + 0) / 2);
  EXPECT_DOUBLE_EQ(pinball(std::vector<double>{3}, std::vector<float>{1}, 0.9), 0.1 * 2);
  EXPECT_DOUBLE_EQ(seasonal_scale(std::vector<float>{1, 4, kAbsent, 8, 6}, 1), 2.5);
  EXPECT_TRUE(std::isnan(seasonal_scale(std::vector<float>{1, 4}, 2)));
  Mean mean;
  for (const double v : {1.0, std::nan(""), 3.0}) mean.add(v);
  EXPECT_DOUBLE_EQ(mean.value(), 2);
  Coverage coverage;
  coverage.add(std::vector<double>{0, 1, 0}, std::vector<double>{2, 2, 9}, std::vector<float>{2, 0, kAbsent});
  EXPECT_DOUBLE_EQ(coverage.share(), 0.5);
  EXPECT_DOUBLE_EQ(owa(9, 2, 18, 1), 1.25);
  EXPECT_DOUBLE_EQ(skill(0.5, 2), 0.75);
  EXPECT_TRUE(std::isnan(skill(1, 0)));
}

TEST(ForecastMetrics, DieboldMarianoMatchesNumpy) {
  for (const auto& row : golden_rows("diebold_mariano.csv")) {
    std::istringstream text(row[3]);
    std::vector<double> differences;
    for (double d; text >> d;) differences.push_back(d);
    const DieboldMariano got = diebold_mariano(differences, std::stoll(row[0]));
    EXPECT_NEAR(got.statistic, std::stod(row[1]), 1e-9);
    EXPECT_NEAR(got.p_value, std::stod(row[2]), 1e-7);
  }
  EXPECT_TRUE(std::isnan(diebold_mariano(std::vector<double>{1, 2}, 0).p_value));
  EXPECT_EQ(diebold_mariano(std::vector<double>{0, 0, 0, 0}, 1).p_value, 1);
  EXPECT_LT(diebold_mariano(std::vector<double>{-1, -1.1, -0.9, -1, -1.05, -0.95}, 0).p_value, 1e-4);
}

TEST(SeriesStore, ExtrapolatesTimesPastTheEnd) {
  rows::SeriesReaderOptions options;
  const auto store = SeriesStore(rows::read_series(
      io::memory_source("a.csv",
                        "unique_id,ds,y\nA,2015-01-30,1\nA,2015-02-02,2\nA,2015-02-03,3\nB,2015-02-03,1\n"
                        "B,2015-02-04,2\n"),
      options));
  ASSERT_EQ(store.size(), 2);
  EXPECT_EQ(store.begin().back(), 5);
  EXPECT_EQ(store.time_text(0, 0), "2015-01-30");
  EXPECT_EQ(store.time_text(0, 6), "2015-02-09");  // business days
  EXPECT_EQ(store.last_step(1), store.last_step(0) + 1);
  EXPECT_FALSE(store.numbered());
  EXPECT_FALSE(store.find("C"));
}

}  // namespace
}  // namespace brim::forecast
