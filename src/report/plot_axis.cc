// SPDX-License-Identifier: Apache-2.0
#include "report/plot_axis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace brim::report {
namespace {

constexpr double kLargest = 1e290;  // beyond this a difference of two values could overflow

struct Scale {
  double divisor;
  const char* suffix;
};

// The most readable unit prefix for `magnitude`.
Scale scale_for(double magnitude, Unit unit) {
  magnitude = std::abs(magnitude);
  static constexpr Scale plain[] = {{1e15, " P"}, {1e12, " T"}, {1e9, " G"}, {1e6, " M"}, {1e3, " k"}, {1, ""}};
  static constexpr Scale bytes[] = {
      {1099511627776.0, " TiB"}, {1073741824.0, " GiB"}, {1048576.0, " MiB"}, {1024.0, " KiB"}, {1, " B"}};
  static constexpr Scale seconds[] = {{1, " s"}, {1e-3, " ms"}, {1e-6, " µs"}, {1e-9, " ns"}};
  if (unit == Unit::share) return {0.01, " %"};
  const auto pick = [&](const auto& table) {
    for (const Scale& s : table)
      if (magnitude >= s.divisor * 0.9999) return s;
    return table[std::size(table) - 1];
  };
  if (unit == Unit::bytes) return pick(bytes);
  if (unit == Unit::seconds) return magnitude == 0 ? Scale{1, " s"} : pick(seconds);
  return magnitude < 1e4 || magnitude > 1e18 ? Scale{1, ""} : pick(plain);
}

// The smallest of 1, 2, 2.5, 5 times a power of ten that is at least `rough`.
double nice_step(double rough) {
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double m : {1.0, 2.0, 2.5, 5.0, 10.0})
    if (m * power >= rough * (1 - 1e-9)) return m * power;
  return 10 * power;
}

std::string plain_number(double value, double step) {
  if (value == 0) return "0";
  if (std::abs(value) >= 1e7 || std::abs(step) < 1e-6) return fmt::format("{:.3g}", value);
  int decimals = 0;
  for (double s = step; decimals < 6 && std::abs(s - std::round(s)) > 1e-6 * std::max(1.0, std::abs(s)); s *= 10)
    ++decimals;
  return fmt::format("{:.{}f}", value, decimals);
}

}  // namespace

std::string format_value(double value, Unit unit) {
  if (!std::isfinite(value)) return "n/a";
  const Scale s = scale_for(value, unit);
  const double v = value / s.divisor, a = std::abs(v);
  if (a >= 1e7 || (a > 0 && a < 1e-3)) return fmt::format("{:.3g}{}", v, s.suffix);
  if (std::abs(v - std::round(v)) <= 1e-9 * a) return fmt::format("{:.0f}{}", v, s.suffix);
  return fmt::format("{:.{}f}{}", v, a < 0.1 ? 4 : a < 10 ? 2 : a < 100 ? 1 : 0, s.suffix);
}

bool PlotAxis::shows(double value) const {
  return std::isfinite(value) && std::abs(value) <= kLargest && (!log_ || value > 1e-290);
}

void PlotAxis::see(double value) {
  if (!shows(value)) return;
  low_ = seen_ ? std::min(low_, value) : value;
  high_ = seen_ ? std::max(high_, value) : value;
  seen_ = true;
}

void PlotAxis::fix(double pixel_low, double pixel_high, int ticks, bool from_zero) {
  pixel_low_ = pixel_low;
  pixel_high_ = pixel_high;
  ticks_.clear();
  if (!seen_) {
    low_ = log_ ? 1 : 0;
    high_ = log_ ? 10 : 1;
  }
  if (log_)
    fix_log(ticks);
  else
    fix_linear(ticks, from_zero);
}

void PlotAxis::fix_linear(int ticks, bool from_zero) {
  if (from_zero) {
    low_ = std::min(low_, 0.0);
    high_ = std::max(high_, 0.0);
  }
  // A single value, or values too close to distinguish: use a range around them.
  const double size = std::max(std::abs(low_), std::abs(high_));
  if (high_ - low_ <= size * 1e-9) {
    const double pad = size > 0 ? size * 0.5 : 0.5;
    low_ = from_zero && low_ >= 0 ? 0 : low_ - pad;
    high_ += pad;
  }
  const Scale s = scale_for(std::max(std::abs(low_), std::abs(high_)), unit_);
  const double step = nice_step((high_ - low_) / s.divisor / ticks);
  const double first = std::floor(low_ / s.divisor / step + 1e-9), last = std::ceil(high_ / s.divisor / step - 1e-9);
  low_ = first * step * s.divisor;
  high_ = last * step * s.divisor;
  for (double i = first; i <= last && ticks_.size() < 40; ++i) {
    const double v = i * step;
    ticks_.push_back({v * s.divisor, plain_number(v, step) + (v == 0 && unit_ != Unit::share ? "" : s.suffix)});
  }
}

void PlotAxis::fix_log(int ticks) {
  if (high_ / low_ < 1.0001) {
    low_ /= 2;
    high_ *= 2;
  }
  const double decades = std::log10(high_) - std::log10(low_);
  const auto add = [&](double v) {
    if (v >= low_ * 0.9999 && v <= high_ * 1.0001) ticks_.push_back({v, format_value(v, unit_)});
  };
  const auto first = static_cast<int>(std::floor(std::log10(low_))),
             last = static_cast<int>(std::ceil(std::log10(high_)));
  if (decades * 3 <= ticks + 1) {
    for (int d = first; d <= last; ++d)
      for (const double m : {1.0, 2.0, 5.0}) add(m * std::pow(10, d));
  } else {
    const int step = std::max(1, static_cast<int>(std::ceil(decades / ticks)));
    for (int d = first; d <= last; d += step) add(std::pow(10, d));
  }
  if (ticks_.size() >= 2) return;
  ticks_.clear();
  add(low_);
  add(std::sqrt(low_) * std::sqrt(high_));
  add(high_);
}

double PlotAxis::at(double value) const {
  double share = log_ ? (std::log10(value) - std::log10(low_)) / (std::log10(high_) - std::log10(low_))
                      : (value - low_) / (high_ - low_);
  share = std::clamp(share, 0.0, 1.0);
  return pixel_low_ + share * (pixel_high_ - pixel_low_);
}

}  // namespace brim::report
