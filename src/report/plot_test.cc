// SPDX-License-Identifier: Apache-2.0
#include "report/plot.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "report/markup_check.h"
#include "report/plot_axis.h"

namespace brim::report {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();
const std::string kHostilePlot = "</svg><script>1</script>\" x=\"<&\xff";

// Well formed, without NaN coordinates.
void expect_drawn(const std::string& drawn, const char* what) {
  const MarkupCheck check = check_markup(drawn);
  EXPECT_EQ(check.problem, "") << what;
  EXPECT_EQ(check.tags.at("svg"), 1) << what;
  EXPECT_EQ(check.tags.count("script"), 0u) << what;
  for (const char* bad : {"\"nan", "\"inf", " nan", " inf", "Lnan", "Mnan", "-nan", "\"-inf"})
    EXPECT_EQ(drawn.find(bad), std::string::npos) << what << ": " << bad;
}

LinePlot lines(std::vector<double> x, std::vector<double> y, bool log_x = false, bool log_y = false) {
  return {"title", "x", "y", {{"s", std::move(x), std::move(y)}}, log_x, log_y};
}

TEST(Plot, DrawsLinesOfEverySize) {
  for (const bool log : {false, true}) {
    expect_drawn(svg(LinePlot{}), "nothing at all");
    expect_drawn(svg(lines({}, {}, log, log)), "empty");
    EXPECT_NE(svg(lines({}, {}, log, log)).find("no data"), std::string::npos);
    expect_drawn(svg(lines({1}, {2}, log, log)), "one point");
    expect_drawn(svg(lines({0}, {0}, log, log)), "zero");
    expect_drawn(svg(lines({1, 2, 3}, {5, 5, 5}, log, log)), "constant");
    expect_drawn(svg(lines({1, 2, 3}, {kNan, kInf, -kInf}, log, log)), "nothing finite");
    expect_drawn(svg(lines({1, 2, 3, 4}, {1, kNan, 3, 4}, log, log)), "a gap");
    expect_drawn(svg(lines({1, 2, 3}, {-1e308, 0, 1e308}, log, log)), "huge");
    expect_drawn(svg(lines({1e-300, 1, 1e280}, {1e-300, 1, 1e280}, log, log)), "huge range");
    expect_drawn(svg(lines({5e-324, 1}, {5e-324, 1}, log, log)), "denormal");
    expect_drawn(svg(lines({1, 2, 3, 4}, {1, 2}, log, log)), "lengths differ");
    expect_drawn(svg(lines({1e15, 1e15 + 1}, {1, 2}, log, log)), "close together");
  }
}

TEST(Plot, BandsAreBehindLinesAndBreakAtGaps) {
  LinePlot plot = lines({1, 2, 3}, {5, 6, 7});
  plot.bands = {{"95 %", {1, 2, 3, 4, 5}, {1, 2, kNan, 3, 2}, {9, 9, 9, 12, 13}, 0}, {"none", {}, {}, {}, 0}};
  const std::string drawn = svg(plot);
  expect_drawn(drawn, "bands");
  const size_t area = drawn.find("<title>95 %</title>", drawn.find("<title>95 %</title>") + 1);  // after the legend
  ASSERT_NE(area, std::string::npos);
  const std::string path = drawn.substr(drawn.rfind("d=\"", area), area - drawn.rfind("d=\"", area));
  EXPECT_EQ(std::count(path.begin(), path.end(), 'z'), 2);  // two sections
  EXPECT_LT(area, drawn.rfind("stroke-linejoin"));
  plot.bands = {{kHostilePlot, {1, 2}, {kInf, 1}, {2, kNan}, 7}};
  expect_drawn(svg(plot), "hostile band");
}

TEST(Plot, GapsBreakTheLine) {
  const std::string drawn = svg(lines({1, 2, 3, 4, 5}, {1, 2, kNan, 4, 5}));
  EXPECT_NE(drawn.find("1 value cannot be shown"), std::string::npos);
  size_t moves = 0;
  for (size_t at = drawn.find("stroke-width:2;stroke-linejoin"); at != std::string::npos;
       at = drawn.find("stroke-width:2;stroke-linejoin", at + 1)) {
    const size_t begin = drawn.rfind("d=\"", at);
    moves =
        std::max<size_t>(moves, static_cast<size_t>(std::count(drawn.begin() + static_cast<std::ptrdiff_t>(begin),
                                                               drawn.begin() + static_cast<std::ptrdiff_t>(at), 'M')));
  }
  EXPECT_EQ(moves, 2u);
}

TEST(Plot, LongSeriesAreThinnedAndKeepTheirPeaks) {
  std::vector<double> x(1'000'000), y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<double>(i);
    y[i] = std::sin(static_cast<double>(i) * 1e-4);
  }
  y[123'456] = 10;  // one point in a million
  const std::string drawn = svg(lines(x, y));
  expect_drawn(drawn, "a million points");
  EXPECT_LT(drawn.size(), 120'000u);
  EXPECT_NE(drawn.find(">10.0<"), std::string::npos) << "the axis reaches the peak";
}

TEST(Plot, NamesAreEscapedAndShortened) {
  LinePlot p = lines({1, 2}, {1, 2});
  p.title = p.x_label = p.y_label = p.series[0].name = kHostilePlot;
  expect_drawn(svg(p), "hostile");
  p.series.assign(30, {std::string(10'000, 'n'), {1, 2}, {1, 2}});
  expect_drawn(svg(p), "many long names");
}

TEST(Plot, DrawsBars) {
  expect_drawn(svg(BarPlot{}), "empty");
  expect_drawn(svg(BarPlot{kHostilePlot,
                           "x",
                           "y",
                           {kHostilePlot, "b"},
                           {{kHostilePlot, {1, kNan}}, {"t", {-2}}, {"u", {}}},
                           Unit::bytes}),
               "ragged");
  const std::string drawn = svg(BarPlot{"t", "x", "y", {"a"}, {{"s", {1536}}}, Unit::bytes});
  EXPECT_NE(drawn.find("a, s: 1.50 KiB"), std::string::npos);
}

TEST(Plot, DrawsManyGroupNamesVertically) {
  BarPlot p{"t", "x", "y", {}, {{"s", {}}}, Unit::plain};
  for (int i = 0; i < 48; ++i) {
    p.groups.push_back(fmt::format("NAME{}", i));
    p.series[0].values.push_back(i);
  }
  const std::string drawn = svg(p);
  expect_drawn(drawn, "many");
  for (const char* name : {">NAME0<", ">NAME46<"}) EXPECT_NE(drawn.find(name), std::string::npos) << name;
  EXPECT_NE(drawn.find("rotate(-90"), std::string::npos);
}

TEST(Plot, DrawsStackedBars) {
  expect_drawn(svg(StackedBar{}), "empty");
  StackedBar p{"memory",
               "bytes",
               {{kHostilePlot,
                 {{"weights", 4e8}, {"nothing", 0}, {"bad", kNan}, {"negative", -5}},
                 {{"measured", 5e8}, {kHostilePlot, kInf}}},
                {"empty", {}, {}}}};
  const std::string drawn = svg(p);
  expect_drawn(drawn, "stacked");
  EXPECT_NE(drawn.find("measured: 477 MiB"), std::string::npos);
}

TEST(Plot, DrawsRoofline) {
  expect_drawn(svg(RooflinePlot{}), "empty");
  RooflinePlot p{
      "roof",     774e12,
      4.1e12,     "774 Tflop/s",
      "4.1 TB/s", {{"linear", 200, 600e12}, {"layer_norm", 0.5, 1e12}, {"zero", 0, 0}, {kHostilePlot, kNan, 1}}};
  const std::string drawn = svg(p);
  expect_drawn(drawn, "roofline");
  EXPECT_NE(drawn.find("77.5 % of the roof"), std::string::npos) << "compute bound: against the peak";
  EXPECT_NE(drawn.find("48.8 % of the roof"), std::string::npos) << "memory bound: against the slope";
  p.peak_flops = kInf;
  expect_drawn(svg(p), "no roof");
}

TEST(Plot, DrawsTimeline) {
  expect_drawn(svg(TimelinePlot{}), "empty");
  TimelinePlot p{"t",
                 "time",
                 {"reader", kHostilePlot},
                 {{0, 0, 0.5, "read"},
                  {1, 0.2, 1, kHostilePlot},
                  {7, 0, 1, "no such lane"},
                  {0, 2, 1, "backwards"},
                  {0, kNan, 1, "x"}}};
  expect_drawn(svg(p), "timeline");
  p.spans.clear();
  for (int i = 0; i < 100'000; ++i) p.spans.push_back({0, i * 1e-5, i * 1e-5 + 9e-6, "read"});
  const std::string drawn = svg(p);
  EXPECT_LT(drawn.size(), 10'000u) << "neighbours are drawn as one";
  EXPECT_NE(drawn.find("in 100000 parts"), std::string::npos);
}

TEST(PlotAxis, TicksAreRoundAndCoverTheData) {
  for (const double high : {1e-9, 0.003, 0.7, 1.0, 9.99, 123.0, 4567.0, 1e6, 3.3e12, 1e200}) {
    PlotAxis axis(false, Unit::plain);
    axis.see(0);
    axis.see(high);
    axis.fix(0, 100, 5, true);
    ASSERT_GE(axis.ticks().size(), 3u) << high;
    ASSERT_LE(axis.ticks().size(), 12u) << high;
    EXPECT_LE(axis.ticks().front().value, 0) << high;
    EXPECT_GE(axis.ticks().back().value, high * 0.999999) << high;
    EXPECT_NEAR(axis.at(axis.low()), 0, 1e-9);
    EXPECT_NEAR(axis.at(axis.high()), 100, 1e-9);
  }
}

TEST(PlotAxis, LogTicksAreRound) {
  PlotAxis axis(true, Unit::plain);
  for (const double v : {1.0, 5.0, 10.0, 20.0, -3.0, 0.0}) axis.see(v);
  axis.fix(0, 100, 7, false);
  std::string all;
  for (const Tick& t : axis.ticks()) all += t.text + " ";
  EXPECT_EQ(all, "1 2 5 10 20 ");
}

TEST(PlotAxis, FormatsValuesWithUnits) {
  EXPECT_EQ(format_value(0, Unit::plain), "0");
  EXPECT_EQ(format_value(12500, Unit::plain), "12.5 k");
  EXPECT_EQ(format_value(1234, Unit::plain), "1234");
  EXPECT_EQ(format_value(1.5 * (1 << 30), Unit::bytes), "1.50 GiB");
  EXPECT_EQ(format_value(0.038, Unit::seconds), "38 ms");
  EXPECT_EQ(format_value(1e-5, Unit::seconds), "10 µs");
  EXPECT_EQ(format_value(0.855, Unit::share), "85.5 %");
  EXPECT_EQ(format_value(kNan, Unit::share), "n/a");
}

}  // namespace
}  // namespace brim::report
