// SPDX-License-Identifier: Apache-2.0
// Theta and ETS compared with statsforecast (tools/make_smoothing_goldens.py), and cases that the golden data lacks.
#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

#include "base/test_files.h"
#include "forecast/ets.h"
#include "forecast/metrics.h"
#include "forecast/nelder_mead.h"
#include "forecast/seasonal.h"
#include "forecast/theta.h"

namespace brim::forecast {
namespace {

constexpr size_t kGoldenHorizon = 8;

struct GoldenSeries {
  std::string name;
  int64_t season = 1;
  std::vector<double> known, ets, theta;
  std::vector<float> actual;
};

std::vector<GoldenSeries> golden_series() {
  std::istringstream file(get_file(BRIM_SOURCE_DIR "/tests/data/forecast/smoothing.csv"));
  std::vector<GoldenSeries> all;
  std::string line, field;
  std::getline(file, line);  // header
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    GoldenSeries& s = all.emplace_back();
    const auto next = [&] {
      std::getline(fields, field, ',');
      return field;
    };
    s.name = next();
    s.season = std::stoll(next());
    const size_t points = std::stoul(next());
    for (size_t i = 0; i < points; ++i) s.known.push_back(std::stod(next()));
    for (size_t i = 0; i < kGoldenHorizon; ++i) s.actual.push_back(std::stof(next()));
    for (std::vector<double>* into : {&s.ets, &s.theta})
      for (size_t i = 0; i < kGoldenHorizon; ++i) into->push_back(std::stod(next()));
  }
  return all;
}

TEST(Smoothing, IsAsAccurateAsStatsforecast) {
  Mean ets, theta, golden_ets, golden_theta;
  for (const GoldenSeries& s : golden_series()) {
    const std::vector<float> history(s.known.begin(), s.known.end());
    const double scale = seasonal_scale(history, s.season);
    ets.add(mase(forecast_ets(s.known, kGoldenHorizon, s.season).values, s.actual, scale));
    theta.add(mase(forecast_theta(s.known, kGoldenHorizon, s.season), s.actual, scale));
    golden_ets.add(mase(s.ets, s.actual, scale));
    golden_theta.add(mase(s.theta, s.actual, scale));
  }
  EXPECT_EQ(ets.count, 24);
  EXPECT_LT(ets.value(), 1.01 * golden_ets.value());
  EXPECT_LT(theta.value(), 1.01 * golden_theta.value());
}

TEST(Theta, EqualsStatsforecast) {
  for (const GoldenSeries& s : golden_series()) {
    const std::vector<double> got = forecast_theta(s.known, kGoldenHorizon, s.season);
    const std::vector<float> history(s.known.begin(), s.known.end());
    for (size_t h = 0; h < kGoldenHorizon; ++h)
      EXPECT_NEAR(got[h], s.theta[h], 0.05 * seasonal_scale(history, s.season)) << s.name << " step " << h;
  }
}

TEST(Ets, FollowsTrendAndSeason) {
  std::vector<double> line, wave, growing;
  for (int t = 0; t < 48; ++t) {
    line.push_back(10 + 2 * t + (t % 3 == 0 ? 0.01 : -0.005));
    wave.push_back(100 + 10 * std::sin(2 * M_PI * t / 12) + (t % 5 == 0 ? 0.02 : 0));
    growing.push_back(std::exp(0.01 * t) * (2 + std::sin(2 * M_PI * t / 12)) * 50);
  }
  const EtsForecast straight = forecast_ets(line, 4, 1);
  for (int h = 0; h < 4; ++h) EXPECT_NEAR(straight.values[static_cast<size_t>(h)], 10 + 2 * (48 + h), 0.5);
  const EtsForecast seasonal = forecast_ets(wave, 12, 12);
  for (int h = 0; h < 12; ++h)
    EXPECT_NEAR(seasonal.values[static_cast<size_t>(h)], 100 + 10 * std::sin(2 * M_PI * h / 12), 0.5);
  EXPECT_EQ(forecast_ets(growing, 12, 12).model.substr(0, 5), "ETS(M") << "errors grow with the level";
}

TEST(Ets, UsesOnlyAdditiveModelsUnlessAllValuesArePositive) {
  std::vector<double> values;
  for (int t = 0; t < 40; ++t) values.push_back(5 * std::sin(2 * M_PI * t / 4) + 0.1 * t - 1 + (t % 7) * 0.05);
  const EtsForecast e = forecast_ets(values, 4, 4);
  EXPECT_EQ(e.model.substr(0, 5), "ETS(A") << e.model;
  EXPECT_EQ(e.model.find(",M)"), std::string::npos) << e.model;
}

TEST(Ets, AdjustsForSeasonsLongerThanADay) {
  std::vector<double> values;
  for (int t = 0; t < 48 * 6; ++t) values.push_back(50 + 20 * std::sin(2 * M_PI * t / 48) + (t % 11) * 0.1);
  const EtsForecast e = forecast_ets(values, 48, 48);
  for (int h = 0; h < 48; ++h)
    EXPECT_NEAR(e.values[static_cast<size_t>(h)], 50.5 + 20 * std::sin(2 * M_PI * h / 48), 1.5) << h;
}

TEST(Smoothing, ForecastsConstantAndTinySeries) {
  const std::vector<double> constant(20, 3.5), zeros(20, 0);
  EXPECT_EQ(forecast_ets(constant, 2, 4).values, (std::vector<double>{3.5, 3.5}));
  EXPECT_EQ(forecast_theta(constant, 2, 4), (std::vector<double>{3.5, 3.5}));
  EXPECT_EQ(forecast_theta(zeros, 1, 1), std::vector<double>{0});
  for (const size_t n : {4u, 5u, 6u, 7u, 8u, 9u, 13u}) {
    std::vector<double> some;
    for (size_t t = 0; t < n; ++t) some.push_back(10 + static_cast<double>(t * t % 7));
    for (const int64_t season : {1, 4, 12}) {
      for (const double v : forecast_theta(some, 6, season)) EXPECT_TRUE(std::isfinite(v)) << n << " " << season;
      if (static_cast<int64_t>(n) < kEtsPoints) continue;
      for (const double v : forecast_ets(some, 6, season).values) EXPECT_TRUE(std::isfinite(v)) << n << " " << season;
    }
  }
}

TEST(NelderMead, FindsMinimaInsideAndOnTheBounds) {
  const auto bowl = [](std::span<const double> x) {
    return 1 + (x[0] - 3) * (x[0] - 3) + 10 * (x[1] + 1) * (x[1] + 1);
  };
  NelderMead search;
  std::vector<double> x = {0.5, 0};
  const double wide[] = {-10, -10}, high[] = {10, 10}, tight[] = {-10, 0};
  EXPECT_NEAR(search.minimize(x, wide, high, bowl, {5000, 1e-12}), 1, 1e-9);
  EXPECT_NEAR(x[0], 3, 1e-4);
  EXPECT_NEAR(x[1], -1, 1e-4);
  x = {0.5, 0.5};
  EXPECT_NEAR(search.minimize(x, tight, high, bowl, {5000, 1e-12}), 11, 1e-6);
  EXPECT_NEAR(x[1], 0, 1e-6);
}

TEST(Seasonal, AdjustmentIsReversible) {
  std::vector<double> positive, mixed;
  for (int t = 0; t < 24; ++t) {
    positive.push_back((100 + t) * (t % 4 == 0 ? 1.3 : 0.9));
    mixed.push_back(t % 4 == 0 ? 5 : -2);
  }
  const SeasonalAdjustment ratios = adjust_for_season(positive, 4), differences = adjust_for_season(mixed, 4);
  EXPECT_EQ(ratios.kind, SeasonKind::multiplicative);
  EXPECT_EQ(differences.kind, SeasonKind::additive);
  std::vector<double> next(4, differences.adjusted.back());
  differences.restore(next);
  for (size_t h = 0; h < 4; ++h) EXPECT_NEAR(next[h], mixed[h], 1e-9);
}

}  // namespace
}  // namespace brim::forecast
