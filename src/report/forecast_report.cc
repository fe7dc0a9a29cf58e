// SPDX-License-Identifier: Apache-2.0
#include "report/forecast_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/units.h"
#include "report/plot.h"

namespace brim::report {
namespace {

std::vector<double> steps_from(double first, size_t count) {
  std::vector<double> steps(count);
  for (size_t i = 0; i < count; ++i) steps[i] = first + static_cast<double>(i);
  return steps;
}

Series by_number(const char* name, std::span<const double> values) {
  return {name, steps_from(1, values.size()), {values.begin(), values.end()}};
}

std::string figure(double value, const char* form) {
  return std::isfinite(value) ? fmt::format(fmt::runtime(form), value) : "–";
}

}  // namespace

std::string svg(const ForecastFan& fan) {
  LinePlot plot;
  plot.title = fan.title;
  plot.x_label = "steps after the cutoff";
  plot.y_label = "value";
  const auto known = static_cast<double>(fan.history.size());
  plot.series.push_back({"known", steps_from(1 - known, fan.history.size()), fan.history});
  plot.series.push_back({"forecast", steps_from(1, fan.forecast.size()), fan.forecast});
  if (!fan.actual.empty()) plot.series.push_back({"actual", steps_from(1, fan.actual.size()), fan.actual});
  std::vector<const ForecastFan::Interval*> widest;
  for (const auto& interval : fan.intervals) widest.push_back(&interval);
  std::sort(widest.begin(), widest.end(), [](const auto* a, const auto* b) { return a->level > b->level; });
  for (const auto* interval : widest)
    plot.bands.push_back({fmt::format("{:g} %", interval->level), steps_from(1, interval->low.size()), interval->low,
                          interval->high, 1});
  return svg(plot);
}

HtmlTable fold_table(std::span<const FoldFigures> folds) {
  HtmlTable table;
  table.caption = "Folds";
  table.header = {
      "cutoff",   "model", "series", "steps", "sMAPE", "MASE", "MAE", "skill vs. naive", "vs. seasonal naive",
      "coverage", "λ"};
  for (const FoldFigures& f : folds)
    table.rows.push_back({f.cutoff, f.refitted ? "new" : "earlier", format_count(f.series), format_count(f.steps),
                          figure(f.smape, "{:.3f}"), figure(f.mase, "{:.3f}"), figure(f.mae, "{:.6g}"),
                          figure(100 * f.skill_naive, "{:.1f} %"), figure(100 * f.skill_snaive, "{:.1f} %"),
                          figure(100 * f.coverage, "{:.1f} %"), figure(f.shrink, "{:.2f}")});
  return table;
}

std::string skill_sentence(double skill, double p_value, std::string_view reference) {
  if (!std::isfinite(skill)) return fmt::format("No comparison with {} is possible.", reference);
  const std::string by = fmt::format("{:.1f} %", 100 * std::abs(skill));
  if (!std::isfinite(p_value))
    return fmt::format("{} by {} than {}; too few folds to test significance.", skill >= 0 ? "Better" : "Worse", by,
                       reference);
  if (p_value >= 0.05)
    return fmt::format("No significant difference from {}: {}{} (Diebold–Mariano p = {:.2g}).", reference,
                       skill >= 0 ? "+" : "−", by, p_value);
  return fmt::format("{} than {} by {} (Diebold–Mariano p = {:.2g}).", skill >= 0 ? "Better" : "Worse", reference, by,
                     p_value);
}

std::string error_by_fold(std::span<const double> model, std::span<const double> naive,
                          std::span<const double> snaive) {
  LinePlot plot;
  plot.title = "Error by fold";
  plot.x_label = "fold";
  plot.y_label = "MASE";
  plot.y_from_zero = true;
  plot.series = {by_number("model", model), by_number("naive", naive), by_number("seasonal naive", snaive)};
  return svg(plot);
}

LinePlot losses_by_lane(const std::vector<LaneCurve>& lanes, int64_t every, int64_t steps, std::string_view title) {
  LinePlot plot;
  plot.title = title;
  plot.x_label = "step";
  plot.y_label = "loss";
  plot.log_y = true;
  for (const LaneCurve& lane : lanes) {
    plot.series.push_back({lane.name, {}, lane.losses});
    if (lane.percent)
      for (double& loss : plot.series.back().y) loss /= 100;
    for (size_t i = 1; i <= lane.losses.size(); ++i)
      plot.series.back().x.push_back(static_cast<double>(std::min(static_cast<int64_t>(i) * every, steps)));
  }
  return plot;
}

std::string memory_against_limit(const std::vector<std::pair<std::string, double>>& parts, double limit) {
  StackedBar bar;
  bar.title = "Memory per wave and limit";
  bar.x_label = "bytes";
  bar.rows = {{"planned", parts, {{"limit", limit}}}};
  return svg(bar);
}

std::string svg(const ComponentLines& lines) {
  LinePlot plot;
  plot.title = lines.title;
  plot.x_label = "step ahead";
  plot.y_label = "adds";
  for (size_t i = 0; i < lines.names.size(); ++i)
    plot.series.push_back(by_number(lines.names[i].c_str(), lines.values[i]));
  return svg(plot);
}

std::string forecast_html(const ForecastPage& r) {
  HtmlPage page("Forecasts", r.subtitle);
  for (const PlottedSeries& series : r.series) {
    page.heading(series.fan.title);
    std::vector<std::string> plots = {svg(series.fan)};
    if (!series.components.values.empty()) plots.push_back(svg(series.components));
    page.plots(plots);
  }
  return page.html();
}

std::string error_by_step(std::span<const double> model, std::span<const double> naive) {
  LinePlot plot;
  plot.title = "Error by step ahead";
  plot.x_label = "step ahead";
  plot.y_label = "MASE";
  plot.y_from_zero = true;
  plot.series = {by_number("model", model), by_number("naive", naive)};
  return svg(plot);
}

}  // namespace brim::report
