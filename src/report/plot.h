// SPDX-License-Identifier: Apache-2.0
// Plots as SVG text, so that a report needs no script, font or network. Colours are CSS variables with a fallback, so a
// page can switch to dark; series also differ in dash and marker, so colour is never the only distinction. Non-finite
// values (or values not above zero on a logarithmic axis) leave a gap. Names are escaped and may contain any bytes.
#pragma once
#include <string>
#include <utility>
#include <vector>

namespace brim::report {

enum class Unit { plain, bytes, seconds, share };  // format of tick labels: 12 k, 3 GiB, 40 ms, 85 %

struct Series {
  std::string name;
  std::vector<double> x, y;  // equal lengths; extra elements are ignored
};

// An area between two lines, drawn behind all lines in the colour of one of them, e.g. an interval around a forecast.
// Several of one colour, widest first, form a fan chart.
struct Band {
  std::string name;
  std::vector<double> x, low, high;  // equal lengths; extra elements are ignored
  size_t series = 0;                 // index of the series that sets the colour
};

// Lines with markers. Long series are thinned to the visible resolution, keeping extremes.
struct LinePlot {
  std::string title, x_label, y_label;
  std::vector<Series> series;
  bool log_x = false, log_y = false;
  Unit x_unit = Unit::plain, y_unit = Unit::plain;
  bool y_from_zero = false;  // linear axes: include zero, so that heights are comparable
  std::vector<Band> bands;
};

// Groups of vertical bars with one bar per series.
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

// One horizontal stacked bar per row, with an optional mark (a measured value or a limit).
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

// Roofline plot: arithmetic intensity (flop/byte) against speed (flop/s), both logarithmic.
struct RooflinePlot {
  struct Point {
    std::string name;
    double intensity = 0, flops = 0;
  };
  std::string title;
  double peak_flops = 0, bandwidth = 0;  // roofs: flop/s, bytes/s
  std::string peak_name, bandwidth_name;
  std::vector<Point> points;
};

// Activity of each lane over time. Spans closer than the visible resolution are merged.
struct TimelinePlot {
  struct Span {
    size_t lane = 0;
    double begin = 0, end = 0;  // seconds
    std::string kind;           // determines the colour
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
