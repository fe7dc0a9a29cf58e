// SPDX-License-Identifier: Apache-2.0
// An axis: maps values to pixels and provides round tick values.
#pragma once
#include <string>
#include <vector>

#include "report/plot.h"

namespace brim::report {

struct Tick {
  double value;
  std::string text;
};

class PlotAxis {
 public:
  // Collect values first (those that cannot be shown are ignored), then fix the range.
  PlotAxis(bool logarithmic, Unit unit) : log_(logarithmic), unit_(unit) {}
  bool shows(double value) const;
  void see(double value);
  bool empty() const { return !seen_; }
  // Widens the range to about `ticks` round numbers and maps it to pixels. `from_zero` as in LinePlot.
  void fix(double pixel_low, double pixel_high, int ticks, bool from_zero);
  double at(double value) const;  // in pixels
  double low() const { return low_; }
  double high() const { return high_; }
  const std::vector<Tick>& ticks() const { return ticks_; }

 private:
  void fix_linear(int ticks, bool from_zero);
  void fix_log(int ticks);
  bool log_, seen_ = false;
  Unit unit_;
  double low_ = 0, high_ = 0, pixel_low_ = 0, pixel_high_ = 1;
  std::vector<Tick> ticks_;
};

// A value with its unit, three digits: "1.25 GiB", "38 ms", "12.5 k", "85 %". "n/a" if not finite.
std::string format_value(double value, Unit unit);

}  // namespace brim::report
