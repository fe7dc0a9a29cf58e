// SPDX-License-Identifier: Apache-2.0
// An axis: from values to pixels, and the round numbers written along it.
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
  // Sees values first (those it cannot show are ignored), then fixes the range.
  PlotAxis(bool logarithmic, Unit unit) : log_(logarithmic), unit_(unit) {}
  bool shows(double value) const;
  void see(double value);
  bool empty() const { return !seen_; }
  // Widens the range to round numbers, about `ticks` of them, and lays it over pixels. `from_zero` as in LinePlot.
  void fix(double pixel_low, double pixel_high, int ticks, bool from_zero);
  double at(double value) const;  // pixel
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

// A value in its unit, three digits: "1.25 GiB", "38 ms", "12.5 k", "85 %". "n/a" where it is not finite.
std::string format_value(double value, Unit unit);

}  // namespace brim::report
