// SPDX-License-Identifier: Apache-2.0
// Plots as SVG text, drawn here so that a report needs no script, no font and no network. Colours are CSS variables
// with a fallback, so a page can turn dark; series differ in dash and marker too, so colour is never the only sign.
// Values that are not finite (or not above zero on a logarithmic axis) leave a gap. Names are escaped: any bytes are
// safe.
#pragma once
#include <string>
#include <utility>
#include <vector>

namespace brim::report {

enum class Unit { plain, bytes, seconds, share };  // how ticks are written: 12 k, 3 GiB, 40 ms, 85 %

struct Series {
  std::string name;
  std::vector<double> x, y;  // as many of each; the shorter decides
};

// An area between two lines, drawn behind all lines in the colour of one of them: an interval around a forecast.
// Several of one colour, the widest first, make a fan.
struct Band {
  std::string name;
  std::vector<double> x, low, high;  // as many of each; the shortest decides
  size_t series = 0;                 // whose colour
};

// Lines with markers. Long series are thinned to what the eye can tell apart, extremes kept.
struct LinePlot {
  std::string title, x_label, y_label;
  std::vector<Series> series;
  bool log_x = false, log_y = false;
  Unit x_unit = Unit::plain, y_unit = Unit::plain;
  bool y_from_zero = false;  // linear axes: show zero, so that heights can be compared
  std::vector<Band> bands;
};

// Groups of upright bars, one bar a series in each group.
struct BarPlot {
  struct Bars {
    std::string name;
    std::vector<double> values;  // one per group
  };
  std::string title, x_label, y_label;
  std::vector<std::string> groups;
  std::vector<Bars> series;
  Unit unit = Unit::plain;
};

// One horizontal bar a row, made of parts; a mark can be set beside it (what was measured, a limit).
struct StackedBar {
  struct Row {
    std::string name;
    std::vector<std::pair<std::string, double>> parts;  // a name has the same colour in every row
    std::vector<std::pair<std::string, double>> marks;
  };
  std::string title, x_label;
  std::vector<Row> rows;
  Unit unit = Unit::bytes;
};

// Operations against what the device could do: arithmetic intensity (flop/byte) to speed (flop/s), both logarithmic.
struct RooflinePlot {
  struct Point {
    std::string name;
    double intensity = 0, flops = 0;
  };
  std::string title;
  double peak_flops = 0, bandwidth = 0;  // the roofs: flop/s, bytes/s
  std::string peak_name, bandwidth_name;
  std::vector<Point> points;
};

// What each lane did when. Neighbours closer than the eye can tell apart are drawn as one.
struct TimelinePlot {
  struct Span {
    size_t lane = 0;
    double begin = 0, end = 0;  // seconds
    std::string kind;           // decides the colour
  };
  std::string title, x_label = "time";
  std::vector<std::string> lanes;
  std::vector<Span> spans;
};

std::string svg(const LinePlot& plot);
std::string svg(const BarPlot& plot);
std::string svg(const StackedBar& plot);
std::string svg(const RooflinePlot& plot);
std::string svg(const TimelinePlot& plot);

}  // namespace brim::report
