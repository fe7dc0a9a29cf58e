// SPDX-License-Identifier: Apache-2.0
#include "report/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/utf8.h"
#include "report/html.h"
#include "report/plot_axis.h"

namespace brim::report {
namespace {

constexpr double kWidth = 720, kFont = 13, kLetter = 7.2;  // kLetter: mean width of a letter at that size
constexpr size_t kMostNameLetters = 34;
constexpr size_t kMostHovers = 150, kMostColumns = 600;  // per series: hover points, pixel columns of a thinned line
constexpr const char* kColours[] = {"var(--c0,#0072b2)", "var(--c1,#d55e00)", "var(--c2,#009e73)", "var(--c3,#a3477f)",
                                    "var(--c4,#8a6d00)", "var(--c5,#2f8fc4)", "var(--c6,#7a4b24)", "var(--c7,#66707a)"};
constexpr const char* kDashes[] = {"", "7 3", "2 3", "9 3 2 3", "12 4", "4 4", "1 4", "10 3 4 3"};
constexpr const char* kInk = "var(--ink,#1b1f24)";
constexpr const char* kSoft = "var(--soft,#57606a)";
constexpr const char* kLine = "var(--line,#d5dae0)";
constexpr const char* kGround = "var(--card,#f6f7f9)";

const char* colour(size_t i) { return kColours[i % std::size(kColours)]; }

double text_width(std::string_view text) {
  return kLetter * static_cast<double>(count_code_points(replace_invalid_utf8(text)));
}

// Collects elements; the height of the picture is known only at the end, because legends wrap.
class Canvas {
 public:
  explicit Canvas(const std::string& title) : title_(title) {
    text(kWidth / 2, 20, title, "middle", kInk, "font-weight:600;font-size:15px");
  }

  void text(double x, double y, std::string_view text, const char* anchor, const char* fill, const char* more = "",
            double turn = 0) {
    body_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" style=\"fill:{};{}\"", x, y, anchor, fill,
                         more);
    if (turn != 0) body_ += fmt::format(" transform=\"rotate({} {:.1f} {:.1f})\"", turn, x, y);
    body_ += fmt::format(">{}</text>\n", html_escape(text));
  }
  void line(double x1, double y1, double x2, double y2, const char* stroke, double width = 1, const char* dash = "") {
    body_ += fmt::format(
        "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" style=\"stroke:{};stroke-width:{}{}{}\"/>\n", x1,
        y1, x2, y2, stroke, width, *dash ? ";stroke-dasharray:" : "", dash);
  }
  void box(double x, double y, double w, double h, const char* fill, std::string_view hover) {
    body_ += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" style=\"fill:{}\">", x, y,
                         std::max(0.5, w), std::max(0.0, h), fill);
    body_ += fmt::format("<title>{}</title></rect>\n", html_escape(hover));
  }
  void path(const std::string& d, size_t series) {
    if (d.empty()) return;
    const char* dash = kDashes[series % std::size(kDashes)];
    body_ += fmt::format("<path d=\"{}\" style=\"fill:none;stroke:{};stroke-width:2;stroke-linejoin:round{}{}\"/>\n", d,
                         colour(series), *dash ? ";stroke-dasharray:" : "", dash);
  }
  void area(const std::string& d, size_t series, std::string_view hover) {
    if (d.empty()) return;
    body_ += fmt::format("<path d=\"{}\" style=\"fill:{};fill-opacity:0.18;stroke:none\"><title>{}</title></path>\n", d,
                         colour(series), html_escape(hover));
  }
  // Cycles through circle, square, triangle, diamond. With `visible` false it is only a hover target.
  void marker(double x, double y, size_t series, std::string_view hover, bool visible) {
    const double r = 4;
    std::string shape;
    switch (series % 4) {
      case 0:
        shape = fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\"", x, y, r);
        break;
      case 1:
        shape = fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{}\" height=\"{}\"", x - r, y - r, 2 * r, 2 * r);
        break;
      case 2:
        shape = fmt::format("<path d=\"M{:.1f} {:.1f}l{} {}h{}z\"", x, y - r - 1, r + 1, 2 * r, -2 * r - 2);
        break;
      default:
        shape = fmt::format("<path d=\"M{:.1f} {:.1f}l{} {}l{} {}l{} {}z\"", x, y - r - 1, r + 1, r + 1, -r - 1, r + 1,
                            -r - 1, -r - 1);
    }
    body_ += visible ? fmt::format("{} style=\"fill:{};stroke:{};stroke-width:1.2\">", shape, colour(series), kGround)
                     : fmt::format("{} style=\"fill:{};opacity:0\">", shape, colour(series));
    body_ += fmt::format("<title>{}</title>{}\n", html_escape(hover),
                         series % 4 == 0   ? "</circle>"
                         : series % 4 == 1 ? "</rect>"
                                           : "</path>");
  }
  // Names with their markers, wrapped to the width; returns the y below.
  enum class Key { line, point, area };
  double legend(const std::vector<std::string>& names, double y, Key key) {
    double x = 20;
    for (size_t i = 0; i < names.size(); ++i) {
      const std::string name = shortened(names[i], kMostNameLetters);
      const double w = 34 + text_width(name) + 14;
      if (x > 20 && x + w > kWidth - 12) {
        x = 20;
        y += 20;
      }
      if (key == Key::line) path(fmt::format("M{:.1f} {:.1f}h26", x, y - 4), i);
      if (key == Key::area)
        box(x + 10, y - 11, 13, 13, colour(i), names[i]);
      else
        marker(x + 13, y - 4, i, names[i], true);
      text(x + 32, y, name, "start", kInk);
      x += w;
    }
    return names.empty() ? y : y + 14;
  }
  // Legend for areas behind lines.
  double legend(const std::vector<Band>& bands, double y) {
    double x = 20;
    for (const Band& band : bands) {
      const std::string name = shortened(band.name, kMostNameLetters);
      area(fmt::format("M{:.1f} {:.1f}h26v13h-26z", x, y - 11), band.series, band.name);
      text(x + 32, y, name, "start", kInk);
      x += 34 + text_width(name) + 14;
    }
    return bands.empty() ? y : y + 14;
  }
  void note(double y, std::string_view text_) { text(kWidth / 2, y, text_, "middle", kSoft, "font-style:italic"); }

  std::string finish(double height, std::string_view description) const {
    return fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"{}\" "
        "style=\"font-family:system-ui,'DejaVu Sans',sans-serif;font-size:{}px\">\n<desc>{}</desc>\n{}</svg>\n",
        kWidth, height, html_escape(title_), kFont, html_escape(description), body_);
  }

 private:
  std::string title_, body_;
};

// The plot area inside the axes.
struct Frame {
  double left, right, top, bottom;
};

Frame frame_for(double top, double height, double left = 78) { return {left, kWidth - 22, top, top + height}; }

void draw_axes(Canvas& canvas, const Frame& f, const PlotAxis& x, const PlotAxis& y, const std::string& x_label,
               const std::string& y_label) {
  for (const Tick& t : y.ticks()) {
    canvas.line(f.left, y.at(t.value), f.right, y.at(t.value), kLine);
    canvas.text(f.left - 8, y.at(t.value) + 4.5, t.text, "end", kSoft);
  }
  double free_from = 0;  // labels that would touch are omitted, their ticks stay
  for (const Tick& t : x.ticks()) {
    const double at = x.at(t.value), half = text_width(t.text) / 2;
    canvas.line(at, f.bottom, at, f.bottom + 5, kSoft);
    if (at - half < free_from) continue;
    canvas.text(at, f.bottom + 19, t.text, "middle", kSoft);
    free_from = at + half + 6;
  }
  canvas.line(f.left, f.bottom, f.right, f.bottom, kSoft);
  canvas.line(f.left, f.top, f.left, f.bottom, kSoft);
  canvas.text((f.left + f.right) / 2, f.bottom + 40, x_label, "middle", kInk);
  canvas.text(16, (f.top + f.bottom) / 2, y_label, "middle", kInk, "", -90);
}

// Draws the names below a bar plot and returns the lower edge. Names that do not fit side by side are drawn vertically,
// and every n-th if even those would touch.
double draw_group_names(Canvas& canvas, const Frame& f, const std::vector<std::string>& groups, double width) {
  constexpr size_t kMostVerticalLetters = 12;
  double widest = 0;
  for (const std::string& name : groups) widest = std::max(widest, text_width(name));
  const bool vertical = widest > width && width < 5 * kLetter;
  const size_t every = vertical ? static_cast<size_t>(std::ceil(14 / width)) : 1;
  const auto letters = vertical ? kMostVerticalLetters : static_cast<size_t>(std::max(2.0, width / kLetter));
  double bottom = f.bottom + 19;
  for (size_t g = 0; g < groups.size(); g += every) {
    const double middle = f.left + width * (static_cast<double>(g) + 0.5);
    const std::string name = shortened(groups[g], letters);
    if (vertical) {
      canvas.text(middle + 4, f.bottom + 8, name, "end", kSoft, "", -90);
      bottom = std::max(bottom, f.bottom + 8 + text_width(name));
    } else {
      canvas.text(middle, bottom, name, "middle", kSoft);
    }
  }
  return bottom;
}

size_t length_of(const Series& s) { return std::min(s.x.size(), s.y.size()); }

// SVG path of a line; if several points share a pixel column, it is drawn through its first, lowest, highest and last.
std::string line_path(const Series& s, const PlotAxis& x, const PlotAxis& y) {
  std::string d;
  const size_t n = length_of(s);
  const bool thin = n > 2 * kMostColumns;
  bool pen = false;
  const auto go = [&](size_t i) {
    d += fmt::format("{}{:.1f} {:.1f}", pen ? "L" : "M", x.at(s.x[i]), y.at(s.y[i]));
    pen = true;
  };
  for (size_t i = 0; i < n;) {
    if (!x.shows(s.x[i]) || !y.shows(s.y[i])) {
      pen = false;
      ++i;
      continue;
    }
    size_t end = i + 1, low = i, high = i;
    if (thin) {
      const double column = std::floor(x.at(s.x[i]));
      for (; end < n && x.shows(s.x[end]) && y.shows(s.y[end]) && std::floor(x.at(s.x[end])) == column; ++end) {
        if (s.y[end] < s.y[low]) low = end;
        if (s.y[end] > s.y[high]) high = end;
      }
    }
    go(i);
    size_t a = std::min(low, high), b = std::max(low, high);
    if (a > i) go(a);
    if (b > a) go(b);
    if (end - 1 > b) go(end - 1);
    i = end;
  }
  return d;
}

size_t length_of(const Band& b) { return std::min({b.x.size(), b.low.size(), b.high.size()}); }

// Along the upper line and back along the lower one, for each section without a gap.
std::string band_path(const Band& b, const PlotAxis& x, const PlotAxis& y) {
  std::string d;
  const size_t n = length_of(b);
  const auto shown = [&](size_t i) { return x.shows(b.x[i]) && y.shows(b.low[i]) && y.shows(b.high[i]); };
  for (size_t i = 0; i < n;) {
    size_t end = i;
    while (end < n && shown(end)) ++end;
    for (size_t k = i; k < end; ++k)
      d += fmt::format("{}{:.1f} {:.1f}", k == i ? "M" : "L", x.at(b.x[k]), y.at(b.high[k]));
    for (size_t k = end; k-- > i;) d += fmt::format("L{:.1f} {:.1f}", x.at(b.x[k]), y.at(b.low[k]));
    if (end > i) d += "z";
    i = std::max(end, i + 1);
  }
  return d;
}

}  // namespace

std::string svg(const LinePlot& p) {
  Canvas canvas(p.title);
  PlotAxis x(p.log_x, p.x_unit), y(p.log_y, p.y_unit);
  std::vector<std::string> names;
  size_t drawn = 0, left_out = 0;
  for (const Series& s : p.series) {
    names.push_back(s.name);
    for (size_t i = 0; i < length_of(s); ++i) {
      if (!x.shows(s.x[i]) || !y.shows(s.y[i])) {
        ++left_out;
        continue;
      }
      x.see(s.x[i]);
      y.see(s.y[i]);
      ++drawn;
    }
  }
  for (const Band& b : p.bands)
    for (size_t i = 0; i < length_of(b); ++i) {
      if (!x.shows(b.x[i]) || !y.shows(b.low[i]) || !y.shows(b.high[i])) continue;
      x.see(b.x[i]);
      y.see(b.low[i]);
      y.see(b.high[i]);
      ++drawn;
    }
  double top = canvas.legend(names, 46, Canvas::Key::line);
  if (!p.bands.empty()) top = canvas.legend(p.bands, top + 6);
  const Frame f = frame_for(top, 260);
  x.fix(f.left, f.right, 7, false);
  y.fix(f.bottom, f.top, 5, p.y_from_zero);
  draw_axes(canvas, f, x, y, p.x_label, p.y_label);
  for (const Band& b : p.bands) canvas.area(band_path(b, x, y), b.series, b.name);
  for (size_t k = 0; k < p.series.size(); ++k) {
    const Series& s = p.series[k];
    canvas.path(line_path(s, x, y), k);
    const size_t n = length_of(s), step = std::max<size_t>(1, n / kMostHovers);
    for (size_t i = 0; i < n; i += step)
      if (x.shows(s.x[i]) && y.shows(s.y[i]))
        canvas.marker(x.at(s.x[i]), y.at(s.y[i]), k,
                      fmt::format("{}: {} {}, {} {}", s.name, p.x_label, format_value(s.x[i], p.x_unit), p.y_label,
                                  format_value(s.y[i], p.y_unit)),
                      n <= 40);
  }
  if (drawn == 0)
    canvas.note((f.top + f.bottom) / 2, "no data");
  else if (left_out > 0)
    canvas.note(f.bottom + 58,
                fmt::format("{} {} cannot be shown (gaps)", left_out, left_out == 1 ? "value" : "values"));
  return canvas.finish(f.bottom + (left_out > 0 && drawn > 0 ? 68 : 52),
                       fmt::format("Line plot of {} over {}, {} series.", p.y_label, p.x_label, p.series.size()));
}

std::string svg(const BarPlot& p) {
  Canvas canvas(p.title);
  PlotAxis y(false, p.unit);
  std::vector<std::string> names;
  for (const auto& s : p.series) {
    names.push_back(s.name);
    for (size_t g = 0; g < std::min(s.values.size(), p.groups.size()); ++g) y.see(s.values[g]);
  }
  const bool empty = y.empty();
  const Frame f =
      frame_for(canvas.legend(p.series.size() > 1 ? names : std::vector<std::string>{}, 46, Canvas::Key::area), 260);
  y.fix(f.bottom, f.top, 5, true);
  draw_axes(canvas, f, PlotAxis(false, Unit::plain), y, "", p.y_label);
  const double room = (f.right - f.left) / static_cast<double>(std::max<size_t>(1, p.groups.size()));
  const double bar = room * 0.76 / static_cast<double>(std::max<size_t>(1, p.series.size())), zero = y.at(0);
  for (size_t g = 0; g < p.groups.size(); ++g) {
    const double begin = f.left + room * (static_cast<double>(g) + 0.12);
    for (size_t k = 0; k < p.series.size(); ++k) {
      if (g >= p.series[k].values.size() || !y.shows(p.series[k].values[g])) continue;
      const double v = p.series[k].values[g], at = y.at(v), x = begin + bar * static_cast<double>(k);
      canvas.box(x, std::min(at, zero), bar * 0.92, std::abs(zero - at), colour(k),
                 fmt::format("{}, {}: {}", p.groups[g], p.series[k].name, format_value(v, p.unit)));
      const std::string label = format_value(v, p.unit);
      if (text_width(label) < bar + 4)
        canvas.text(x + bar * 0.46, std::min(at, zero) - 5, label, "middle", kSoft, "font-size:12px");
    }
  }
  const double bottom = draw_group_names(canvas, f, p.groups, room);
  canvas.text((f.left + f.right) / 2, bottom + 21, p.x_label, "middle", kInk);
  if (empty) canvas.note((f.top + f.bottom) / 2, "no data");
  return canvas.finish(bottom + 33, fmt::format("Bars of {} for {} groups.", p.y_label, p.groups.size()));
}

std::string svg(const StackedBar& p) {
  Canvas canvas(p.title);
  std::vector<std::string> names;
  PlotAxis x(false, p.unit);
  x.see(0);
  const auto place_of = [&](const std::string& name) {
    return static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
  };
  bool empty = true;
  const auto usable = [](double v) { return std::isfinite(v) && v > 0 && v < 1e280; };
  for (const auto& row : p.rows) {
    double sum = 0;
    for (const auto& [name, value] : row.parts) {
      if (!usable(value)) continue;
      if (place_of(name) == names.size()) names.push_back(name);
      sum += value;
      empty = false;
    }
    x.see(sum);
    for (const auto& [name, value] : row.marks)
      if (usable(value)) {
        x.see(value);
        empty = false;
      }
  }
  double widest = 0;
  for (const auto& row : p.rows) widest = std::max(widest, text_width(shortened(row.name, 22)));
  const double top = canvas.legend(names, 46, Canvas::Key::area), step = 46;
  const Frame f{24 + widest, kWidth - 40, top, top + step * static_cast<double>(std::max<size_t>(1, p.rows.size()))};
  x.fix(f.left, f.right, 6, true);
  for (const Tick& t : x.ticks()) {
    canvas.line(x.at(t.value), f.top, x.at(t.value), f.bottom, kLine);
    canvas.text(x.at(t.value), f.bottom + 19, t.text, "middle", kSoft);
  }
  for (size_t r = 0; r < p.rows.size(); ++r) {
    const auto& row = p.rows[r];
    const double y = f.top + step * static_cast<double>(r) + 12;
    canvas.text(f.left - 10, y + 17, shortened(row.name, 22), "end", kInk);
    double sum = 0;
    for (const auto& [name, value] : row.parts) {
      if (!usable(value)) continue;
      canvas.box(x.at(sum), y, x.at(sum + value) - x.at(sum), 24, colour(place_of(name)),
                 fmt::format("{}, {}: {}", row.name, name, format_value(value, p.unit)));
      sum += value;
    }
    for (const auto& [name, value] : row.marks) {
      if (!usable(value)) continue;
      canvas.box(x.at(value) - 1.5, y - 6, 3, 36, kInk,
                 fmt::format("{}, {}: {}", row.name, name, format_value(value, p.unit)));
      const bool near_end = x.at(value) + text_width(name) / 2 > kWidth - 8;
      canvas.text(near_end ? kWidth - 8 : x.at(value), y - 8, shortened(name, 24), near_end ? "end" : "middle", kSoft,
                  "font-size:11px");
    }
  }
  canvas.line(f.left, f.bottom, f.right, f.bottom, kSoft);
  canvas.text((f.left + f.right) / 2, f.bottom + 40, p.x_label, "middle", kInk);
  if (empty) canvas.note((f.top + f.bottom) / 2 + 4, "no data");
  return canvas.finish(f.bottom + 52, fmt::format("Stacked bars, {} rows.", p.rows.size()));
}

std::string svg(const RooflinePlot& p) {
  Canvas canvas(p.title);
  PlotAxis x(true, Unit::plain), y(true, Unit::plain);
  const bool roofs = p.peak_flops > 0 && p.bandwidth > 0 && std::isfinite(p.peak_flops) && std::isfinite(p.bandwidth);
  const double ridge = roofs ? p.peak_flops / p.bandwidth : 0;
  std::vector<std::string> names;
  for (const auto& point : p.points) {
    if (!x.shows(point.intensity) || !y.shows(point.flops)) continue;
    x.see(point.intensity);
    y.see(point.flops);
    names.push_back(point.name);
  }
  const bool empty = names.empty() && !roofs;
  if (roofs) {
    x.see(ridge / 8);
    x.see(ridge * 8);
    y.see(p.peak_flops * 1.6);
    y.see(p.peak_flops / 100);
  }
  const Frame f = frame_for(canvas.legend(names, 46, Canvas::Key::point), 300);
  if (!x.empty()) {  // padding at both ends
    const double low = x.low(), high = x.high();
    x.see(low / 1.5);
    x.see(high * 1.5);
    y.see(y.low() / 1.5);
  }
  x.fix(f.left, f.right, 6, false);
  y.fix(f.bottom, f.top, 6, false);
  draw_axes(canvas, f, x, y, "arithmetic intensity (flop per byte)", "speed (flop/s)");
  if (roofs) {
    const double start = std::max(x.low(), y.low() / p.bandwidth);
    canvas.line(x.at(start), y.at(start * p.bandwidth), x.at(ridge), y.at(p.peak_flops), kInk, 2);
    canvas.line(x.at(ridge), y.at(p.peak_flops), f.right, y.at(p.peak_flops), kInk, 2);
    canvas.text(f.right - 4, y.at(p.peak_flops) - 8, shortened(p.peak_name, 60), "end", kInk);
    const double x1 = x.at(start), y1 = y.at(start * p.bandwidth), x2 = x.at(ridge), y2 = y.at(p.peak_flops);
    const double angle = std::atan2(y2 - y1, x2 - x1) * 180 / 3.14159265358979, mx = x1 + (x2 - x1) * 0.5,
                 my = y1 + (y2 - y1) * 0.5;
    if (std::hypot(x2 - x1, y2 - y1) > text_width(p.bandwidth_name))
      canvas.text(mx - 8, my - 10, p.bandwidth_name, "middle", kInk, "", std::round(angle));
  }
  size_t k = 0;
  for (const auto& point : p.points) {
    if (!x.shows(point.intensity) || !y.shows(point.flops)) continue;
    std::string hover = fmt::format("{}: {}flop/s at {} flop per byte", point.name,
                                    format_value(point.flops, Unit::plain), format_value(point.intensity, Unit::plain));
    if (roofs)
      hover += fmt::format(", {:.1f} % of the roof",
                           100 * point.flops / std::min(p.peak_flops, point.intensity * p.bandwidth));
    canvas.marker(x.at(point.intensity), y.at(point.flops), k++, hover, true);
  }
  if (empty) canvas.note((f.top + f.bottom) / 2, "no data");
  return canvas.finish(f.bottom + 52, fmt::format("Roofline with {} points.", names.size()));
}

std::string svg(const TimelinePlot& p) {
  Canvas canvas(p.title);
  PlotAxis x(false, Unit::seconds);
  std::vector<std::string> kinds;
  std::map<std::string, size_t> place;
  for (const auto& s : p.spans) {
    if (s.lane >= p.lanes.size() || !x.shows(s.begin) || !x.shows(s.end) || s.end < s.begin) continue;
    x.see(s.begin);
    x.see(s.end);
    if (place.emplace(s.kind, kinds.size()).second) kinds.push_back(s.kind);
  }
  const bool empty = x.empty();
  double widest = 0;
  for (const auto& lane : p.lanes) widest = std::max(widest, text_width(shortened(lane, 20)));
  const double top = canvas.legend(kinds, 46, Canvas::Key::area), step = 26;
  const Frame f{24 + widest, kWidth - 30, top,
                top + step * static_cast<double>(std::max<size_t>(2, p.lanes.size())) + 4};
  x.fix(f.left, f.right, 7, false);
  for (const Tick& t : x.ticks()) {
    canvas.line(x.at(t.value), f.top, x.at(t.value), f.bottom, kLine);
    canvas.text(x.at(t.value), f.bottom + 19, t.text, "middle", kSoft);
  }
  for (size_t lane = 0; lane < p.lanes.size(); ++lane) {
    const double y = f.top + 4 + step * static_cast<double>(lane);
    canvas.text(f.left - 10, y + 14, shortened(p.lanes[lane], 20), "end", kInk);
    std::vector<const TimelinePlot::Span*> spans;
    for (const auto& s : p.spans)
      if (s.lane == lane && x.shows(s.begin) && x.shows(s.end) && s.end >= s.begin) spans.push_back(&s);
    std::stable_sort(spans.begin(), spans.end(), [](const auto* a, const auto* b) { return a->begin < b->begin; });
    for (size_t i = 0; i < spans.size();) {
      size_t next = i + 1;
      double end = spans[i]->end, busy = spans[i]->end - spans[i]->begin;
      for (; next < spans.size() && spans[next]->kind == spans[i]->kind && x.at(spans[next]->begin) - x.at(end) < 0.7;
           ++next) {
        busy += spans[next]->end - spans[next]->begin;
        end = std::max(end, spans[next]->end);
      }
      const double from = x.at(spans[i]->begin);
      canvas.box(from, y, x.at(end) - from, step - 8, colour(place[spans[i]->kind]),
                 fmt::format("{}: {} {}{}", p.lanes[lane], spans[i]->kind, format_value(busy, Unit::seconds),
                             next - i > 1 ? fmt::format(" in {} parts", next - i) : ""));
      i = next;
    }
  }
  canvas.line(f.left, f.bottom, f.right, f.bottom, kSoft);
  canvas.text((f.left + f.right) / 2, f.bottom + 40, p.x_label, "middle", kInk);
  if (empty) canvas.note((f.top + f.bottom) / 2, "no data");
  return canvas.finish(f.bottom + 52, fmt::format("Timeline of {} lanes.", p.lanes.size()));
}

}  // namespace brim::report
