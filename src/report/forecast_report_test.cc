// SPDX-License-Identifier: Apache-2.0
#include "report/forecast_report.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/test_files.h"
#include "report/markup_check.h"

namespace brim::report {
namespace {

TEST(ForecastReport, FansShowHistoryForecastAndActualValues) {
  ForecastFan fan{"A <b>", {1, std::nan(""), 3}, {4, 5}, {4.5, std::nan("")}, {}};
  fan.intervals = {{80, {3.5, 4}, {4.5, 6}}, {95, {3, 3}, {5, 7}}};
  const std::string drawn = svg(fan);
  EXPECT_EQ(check_markup(drawn).problem, "");
  for (const char* part : {"A &lt;b&gt;", "known", "forecast", "actual", "80 %", "95 %"}) EXPECT_HAS(drawn, part);
  EXPECT_LT(drawn.rfind("<title>95 %"), drawn.rfind("<title>80 %"));  // the widest is at the bottom
  EXPECT_EQ(check_markup(svg(ForecastFan{})).problem, "");
}

TEST(ForecastReport, LossCurvesEndAtTheLastStepInOneUnit) {
  const LinePlot plot =
      losses_by_lane({{"2 · smape", {20, 18, 17, 16, 15}, true}, {"2 · mape", {0.2, 0.1}}}, 64, 300, "Loss by lane");
  ASSERT_EQ(plot.series.size(), 2u);
  EXPECT_EQ(plot.series[0].x, (std::vector<double>{64, 128, 192, 256, 300}));
  EXPECT_EQ(plot.series[1].x, (std::vector<double>{64, 128}));
  EXPECT_DOUBLE_EQ(plot.series[0].y[0], 0.2);
  EXPECT_DOUBLE_EQ(plot.series[1].y[0], 0.2);
}

TEST(ForecastReport, FoldsHaveATableAndAPage) {
  const std::vector<FoldFigures> folds = {
      {"2015-01-02", true, 48, 100, 1.25, 0.9, 2.5, 0.031, -0.02, 0.81, 0.12},
      {"2015-01-05", false, 47, 100, 1.5, 1.1, 3, std::nan(""), 0, std::nan(""), 1}};
  HtmlPage page("Rolling");
  page.table(fold_table(folds));
  page.svg(error_by_fold(std::vector<double>{0.9, 1.1}, std::vector<double>{1, 1}, std::vector<double>{1, 2}));
  page.svg(error_by_step(std::vector<double>{0.5, std::nan("")}, std::vector<double>{1, 1}));
  const std::string html = page.html();
  EXPECT_EQ(check_markup(html).problem, "");
  for (const char* part : {"2015-01-02", "new", "earlier", "3.1 %", "-2.0 %", "81.0 %", "–", "0.12", "seasonal naive"})
    EXPECT_HAS(html, part);
}

TEST(ForecastReport, PageOfForecastsShowsEachSeries) {
  ForecastPage page{"NBEATS · 2 series", {}};
  page.series.push_back({{"A <b>", {1, 2}, {3}, {}, {{80, {2}, {4}}}}, {"Components", {"trend"}, {{0.5}}}});
  page.series.push_back({{"B", {1, 2}, {3}, {}, {}}, {}});
  const std::string html = forecast_html(page);
  EXPECT_EQ(check_markup(html).problem, "");
  for (const char* part : {"A &lt;b&gt;", "80 %", "trend", "Components"}) EXPECT_HAS(html, part);
  EXPECT_EQ(html.find(">actual<"), std::string::npos);
}

TEST(ForecastReport, InsignificantDifferenceIsNotCalledSkill) {
  EXPECT_EQ(skill_sentence(0.031, 0.02, "naive"), "Better than naive by 3.1 % (Diebold–Mariano p = 0.02).");
  EXPECT_EQ(skill_sentence(-0.1, 0.001, "naive"), "Worse than naive by 10.0 % (Diebold–Mariano p = 0.001).");
  EXPECT_HAS(skill_sentence(0.031, 0.3, "naive"), "No significant difference from naive: +3.1 %");
  EXPECT_HAS(skill_sentence(0.031, std::nan(""), "naive"), "too few folds");
  EXPECT_HAS(skill_sentence(std::nan(""), 0.5, "naive"), "No comparison with naive is possible");
}

}  // namespace
}  // namespace brim::report
