// SPDX-License-Identifier: Apache-2.0
#include "report/roll_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string_view>

#include "base/units.h"
#include "report/forecast_report.h"
#include "report/plot.h"

namespace brim::report {
namespace {

using Json = nlohmann::ordered_json;
using forecast::FoldScore;
using forecast::RollTraining;
using forecast::SeriesScore;

Json roll_number(double value) { return std::isfinite(value) ? Json(value) : Json(); }

Json roll_numbers(const std::vector<double>& values) {
  Json list = Json::array();
  for (const double value : values) list.push_back(roll_number(value));
  return list;
}

Json scores_json(const forecast::Scores& s) {
  return {{"smape", roll_number(s.smape)},
          {"mase", roll_number(s.mase)},
          {"mae", roll_number(s.mae)},
          {"mape", roll_number(s.mape)}};
}

Json test_json(const forecast::DieboldMariano& test) {
  return {{"statistic", roll_number(test.statistic)}, {"p_value", roll_number(test.p_value)}};
}

const char* kind_name(RollTraining::Kind kind) {
  switch (kind) {
    case RollTraining::Kind::calibration:
      return "calibration";
    case RollTraining::Kind::anchor:
      return "anchor";
    case RollTraining::Kind::fold:
      break;
  }
  return "fold";
}

double mean_of(const std::vector<double>& values) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

int64_t failed_lanes(const RollRecord& r) {
  return std::count_if(r.run.lanes.begin(), r.run.lanes.end(), [](const auto& lane) { return lane.failed; });
}

// Sentence about the starting point of trainings.
std::string warm_sentence(const RollRecord& r) {
  const int64_t warm = r.plan.trainings.back().steps;
  switch (r.settings.warm) {
    case forecast::WarmStart::none:
      return fmt::format("Every training starts from its own seed and runs for {}.",
                         format_count(r.plan.steps, "step"));
    case forecast::WarmStart::anchor:
      return fmt::format(
          "Warm starts: every training starts from a base model that was trained up to an earlier or the same cutoff "
          "({}), runs for {} and resets the AdamW state.",
          format_count(r.plan.steps, "step"), format_count(warm, "step"));
    case forecast::WarmStart::chain:
      break;
  }
  return fmt::format(
      "Warm starts: every training continues from the weights and moments of the previous one for {}; the first ran "
      "for {}. Folds run sequentially.",
      format_count(warm, "step"), format_count(r.plan.steps, "step"));
}

std::vector<std::string> notes_of(const RollRecord& r) {
  std::vector<std::string> notes = {warm_sentence(r)};
  if (r.settings.shrink == "auto")
    notes.push_back(
        "Forecasts are shrunk towards the last value by λ, fitted per step ahead on windows with outcomes known at the "
        "cutoff: 0 is the last value, 1 is the model.");
  if (const int64_t failed = failed_lanes(r); failed > 0)
    notes.push_back(fmt::format("{} of {} failed (non-finite gradients) and are excluded from the medians.",
                                format_count(failed, "lane"), format_count(static_cast<int64_t>(r.run.lanes.size()))));
  int64_t left_out = 0;
  for (const FoldScore& fold : r.score.folds) left_out += fold.left_out;
  if (left_out > 0)
    notes.push_back(fmt::format(
        "{} of a series in a fold were omitted: the series had ended, had not begun, or had no known values.",
        format_count(left_out, "forecast")));
  std::string column = r.settings.target_column;
  std::transform(column.begin(), column.end(), column.begin(), [](unsigned char c) { return std::tolower(c); });
  if (column.find("adj") != std::string::npos)
    notes.push_back(
        fmt::format("Column \"{}\": adjusted prices are revised after dividends and splits, so past values contain "
                    "information from the future.",
                    r.settings.target_column));
  if (r.settings.target_utilization > 0)
    notes.push_back(
        r.busy ? fmt::format(
                     "The device was busy {:.0f} % of the training time; target_utilization is {:g} %{}.",
                     100 * *r.busy, r.settings.target_utilization,
                     100 * *r.busy < r.settings.target_utilization ? ": too few or too small lanes and windows" : "")
               : fmt::format("target_utilization is {:g} %; device utilisation was not measured.",
                             r.settings.target_utilization));
  return notes;
}

// One line per training would be too many, so members are averaged over trainings.
std::string losses_plot(const RollRecord& r) {
  const size_t M = r.members.lanes.size();
  std::vector<LaneCurve> lanes;
  for (size_t m = 0; m < M; ++m) {
    const ops::LaneSpec& spec = r.members.lanes[m].spec;
    std::vector<forecast::Mean> points;
    for (size_t t = 0; t < r.plan.trainings.size(); ++t) {
      const auto& curve = r.run.lanes[t * M + m].curve;
      points.resize(std::max(points.size(), curve.size()));
      for (size_t i = 0; i < curve.size(); ++i) points[i].add(static_cast<double>(curve[i]));
    }
    lanes.push_back({fmt::format("{} · {}", spec.lookback, forecast::forecast_loss_name(spec.loss)),
                     {},
                     spec.loss == ops::ForecastLoss::smape});
    for (const forecast::Mean& point : points) lanes.back().losses.push_back(point.value());
  }
  int64_t steps = 0;
  for (const auto& training : r.plan.trainings) steps = std::max(steps, training.steps);
  return svg(losses_by_lane(lanes, forecast::kCurveSteps, steps, "Loss by lane, mean over trainings"));
}

std::string memory_plot(const forecast::EnsemblePlan& plan) {
  std::vector<std::pair<std::string, double>> parts = {{"context", static_cast<double>(plan.context_bytes)}};
  for (const auto& part : plan.parts) parts.emplace_back(tag_name(part.tag), static_cast<double>(part.bytes));
  return memory_against_limit(parts, static_cast<double>(plan.limit_bytes));
}

constexpr const char* kSpanNames[] = {"training", "forecasting", "saving"};

std::string timeline_plot(const RollRecord& r) {
  TimelinePlot plot{
      .title = "Timeline of the waves", .x_label = "seconds since the start of the run", .lanes = {}, .spans = {}};
  plot.lanes.assign(std::begin(kSpanNames), std::end(kSpanNames));
  for (const forecast::RollSpan& span : r.run.timeline) {
    const auto what = static_cast<size_t>(span.what);
    plot.spans.push_back({what, span.begin, span.end, kSpanNames[what]});
  }
  return svg(plot);
}

HtmlTable settings_table(const forecast::ForecastSettings& s) {
  HtmlTable table{.caption = "Settings", .header = {"key", "value"}, .rows = {}};
  for (const KeptSetting& kept : forecast::forecast_settings().kept(s))
    if (!kept.value.empty()) table.rows.push_back({kept.name, kept.value});
  return table;
}

std::string skill_plot(std::vector<SeriesScore> series) {
  std::erase_if(series, [](const SeriesScore& s) { return !std::isfinite(s.skill_naive); });
  std::stable_sort(series.begin(), series.end(),
                   [](const SeriesScore& a, const SeriesScore& b) { return a.skill_naive > b.skill_naive; });
  constexpr size_t kEnds = 20;  // number of best and worst series shown
  BarPlot plot{.title = "Skill vs. naive by series", .x_label = "series", .y_label = "1 − MASE ÷ naive's"};
  plot.series.push_back({"skill", {}});
  for (size_t i = 0; i < series.size(); ++i) {
    if (i >= kEnds && i + kEnds < series.size()) continue;
    plot.groups.push_back(shortened(series[i].id, 12));
    plot.series[0].values.push_back(series[i].skill_naive);
  }
  return plot.groups.empty() ? "" : svg(plot);
}

std::string fan_of(const RollRecord& r, const forecast::DrawnForecast& of) {
  const forecast::RolledForecast& f = of.forecast;
  ForecastFan fan;
  fan.title =
      fmt::format("{}: {} (MASE {:.2f}), the last fold", of.which, shortened(r.series.id(f.series), 40), of.mase);
  const auto known = r.series.series(f.series).first(static_cast<size_t>(f.known));
  const auto tail = known.last(std::min(known.size(), static_cast<size_t>(6 * r.score.horizon)));
  fan.history.assign(tail.begin(), tail.end());
  fan.forecast = f.forecast;
  fan.actual.assign(f.actual.begin(), f.actual.end());
  for (size_t l = 0; l < r.score.levels.size(); ++l)
    fan.intervals.push_back({r.score.levels[l].level, f.low[l], f.high[l]});
  return svg(fan);
}

}  // namespace

std::string roll_headline(const forecast::RollScore& score) {
  std::string text;
  if (score.best > 1)  // neither of the naive ones, which have sentences of their own
    text = skill_sentence(forecast::skill(score.model.mase, score.baselines[score.best].scores.mase),
                          score.baselines[score.best].test.p_value,
                          fmt::format("{}, the best baseline", baseline_title(score.baselines[score.best].baseline))) +
           " ";
  text += skill_sentence(score.skill_naive, score.against_naive.p_value, "naive");
  if (score.season > 1)
    text += " " + skill_sentence(score.skill_snaive, score.against_snaive.p_value, "seasonal naive");
  const auto all_zero = [](const FoldScore& fold) {
    return std::all_of(fold.factors.begin(), fold.factors.end(), [](double factor) { return factor == 0; });
  };
  if (!score.folds.empty() && std::all_of(score.folds.begin(), score.folds.end(), all_zero))
    text += " Every forecast is the last value (λ = 0).";
  return text;
}

namespace {

constexpr const char* kBySeries = "\x01 by series";  // placeholder for the rows until they are written

// One row per series: there may be a million, which would take a gigabyte as a JSON tree.
void append_by_series(std::string& text, const std::vector<SeriesScore>& series) {
  constexpr size_t kRowBytes = 160;
  text.reserve(text.size() + series.size() * kRowBytes);
  const char* before = "[\n    ";
  for (const SeriesScore& one : series) {
    const Json row = {{"unique_id", one.id},
                      {"folds", one.folds},
                      {"mase", roll_number(one.mase)},
                      {"mae", roll_number(one.mae)},
                      {"naive_mase", roll_number(one.naive_mase)},
                      {"skill_naive", roll_number(one.skill_naive)}};
    text += before;
    text += row.dump(-1, ' ', false, Json::error_handler_t::replace);
    before = ",\n    ";
  }
  text += series.empty() ? "[]" : "\n  ]";
}

void add_scores(Json& j, const forecast::RollScore& score) {
  j.update(scores_json(score.model));
  j["skill_naive"] = roll_number(score.skill_naive);
  j["skill_snaive"] = roll_number(score.skill_snaive);
  j["mae_over_naive"] = roll_number(score.model.mae / score.naive.mae);
  j["against_naive"] = test_json(score.against_naive);
  j["against_snaive"] = test_json(score.against_snaive);
  j["naive"] = scores_json(score.naive);
  j["snaive"] = scores_json(score.snaive);
  for (size_t i = 2; i < score.baselines.size(); ++i)
    j[baseline_name(score.baselines[i].baseline)] = scores_json(score.baselines[i].scores);
  if (!score.baselines.empty()) {
    const forecast::BaselineScore& best = score.baselines[score.best];
    j["best_baseline"] = baseline_name(best.baseline);
    j["skill_best"] = roll_number(forecast::skill(score.model.mase, best.scores.mase));
    j["against_best"] = test_json(best.test);
  }
  j["crps"] = roll_number(score.crps);
  j["scaled_crps"] = roll_number(score.scaled_crps);
  j["levels"] = Json::array();
  for (const auto& level : score.levels)
    j["levels"].push_back(
        {{"level", level.level}, {"coverage", roll_number(level.coverage)}, {"pinball", roll_number(level.pinball)}});
  j["mase_by_step"] = roll_numbers(score.mase_by_step);
  j["naive_mase_by_step"] = roll_numbers(score.naive_by_step);
}

Json folds_json(const forecast::RollScore& score) {
  Json folds = Json::array();
  for (const FoldScore& f : score.folds) {
    Json fold = {{"cutoff", f.cutoff},
                 {"trained_here", f.refitted},
                 {"series", f.series},
                 {"left_out", f.left_out},
                 {"steps", f.steps}};
    fold.update(scores_json(f.model));
    fold["naive_mase"] = roll_number(f.naive.mase);
    fold["snaive_mase"] = roll_number(f.snaive.mase);
    fold["skill_naive"] = roll_number(f.skill_naive);
    fold["skill_snaive"] = roll_number(f.skill_snaive);
    fold["coverage"] = roll_number(f.coverage);
    fold["shrink"] = roll_numbers(f.factors);
    folds.push_back(std::move(fold));
  }
  return folds;
}

Json trainings_json(const RollRecord& r) {
  Json trainings = Json::array();
  for (size_t t = 0; t < r.plan.trainings.size(); ++t) {
    const RollTraining& training = r.plan.trainings[t];
    Json lanes = Json::array();
    for (size_t m = 0; m < r.members.lanes.size(); ++m) {
      const auto& lane = r.run.lanes[t * r.members.lanes.size() + m];
      lanes.push_back({{"lookback", r.members.lanes[m].spec.lookback},
                       {"loss", forecast::forecast_loss_name(r.members.lanes[m].spec.loss)},
                       {"failed", lane.failed},
                       {"last_loss", roll_number(static_cast<double>(lane.last_loss))}});
    }
    trainings.push_back({{"kind", kind_name(training.kind)},
                         {"starts_from", training.base < 0 ? Json() : Json(training.base)},
                         {"steps", training.steps},
                         {"cutoffs", training.cutoffs.size()},
                         {"lanes", std::move(lanes)}});
  }
  return trainings;
}

Json timeline_json(const forecast::RollRun& run) {
  Json timeline = Json::array();
  for (const forecast::RollSpan& span : run.timeline)
    timeline.push_back({{"what", kSpanNames[static_cast<size_t>(span.what)]},
                        {"begin", span.begin},
                        {"end", span.end},
                        {"lanes", span.lanes}});
  return timeline;
}

Json memory_json(const forecast::EnsemblePlan& memory) {
  Json bytes = Json::array();
  for (const auto& part : memory.parts)
    bytes.push_back({{"tag", tag_name(part.tag)}, {"owner", part.owner}, {"bytes", part.bytes}});
  return {{"limit_bytes", memory.limit_bytes},
          {"planned_bytes", memory.peak_bytes},
          {"context_bytes", memory.context_bytes},
          {"waves", memory.waves},
          {"parts", std::move(bytes)}};
}

}  // namespace

std::string roll_json(const RollRecord& r) {
  const forecast::ForecastSettings& s = r.settings;
  Json j = {{"schema_version", 1},
            {"headline", roll_headline(r.score)},
            {"model", r.alias},
            {"series", r.series.size()},
            {"points", r.score.points},
            {"horizon", r.score.horizon},
            {"season", r.score.season},
            {"frequency", frequency_name(r.series.frequency())},
            {"device", r.device},
            {"precision", r.precision},
            {"warm", warm_start_name(s.warm)},
            {"warm_sentence", warm_sentence(r)},
            {"members", r.members.lanes.size()},
            {"lanes", r.run.lanes.size()},
            {"lanes_per_wave", r.run.memory.lanes_per_wave},
            {"lanes_failed", failed_lanes(r)},
            {"lanes_resumed", r.run.resumed_lanes},
            {"steps", r.plan.steps},
            {"windows_per_step", s.windows_per_step()},
            {"seconds", r.run.seconds},
            {"windows_per_second", Json()},
            {"busy", r.busy ? Json(*r.busy) : Json()},
            {"target_utilization", s.target_utilization > 0 ? Json(s.target_utilization) : Json()}};
  int64_t windows = 0;  // for lanes trained by this process
  const size_t M = r.members.lanes.size();
  for (const RollTraining& training : r.plan.trainings)
    windows += training.steps * s.windows_per_step() * static_cast<int64_t>(M);
  if (r.run.seconds > 0 && r.run.resumed_lanes == 0)
    j["windows_per_second"] = static_cast<double>(windows) / r.run.seconds;
  add_scores(j, r.score);
  j["folds"] = folds_json(r.score);
  j["by_series"] = kBySeries;
  j["trainings"] = trainings_json(r);
  j["timeline"] = timeline_json(r.run);
  j["memory"] = memory_json(r.run.memory);
  j["settings"] = Json::object();
  for (const KeptSetting& kept : forecast::forecast_settings().kept(s)) j["settings"][kept.name] = kept.value;
  const std::string text = j.dump(2, ' ', false, Json::error_handler_t::replace) + "\n", mark = Json(kBySeries).dump();
  const size_t at = text.find(mark);
  std::string out = text.substr(0, at);
  append_by_series(out, r.score.series);
  return out.append(text, at + mark.size());
}

std::string roll_html(const RollRecord& r) {
  const forecast::RollScore& score = r.score;
  HtmlPage page("Rolling forecasts", fmt::format("{} · horizon {} · {} series · {} in {}",
                                                 format_count(static_cast<int64_t>(score.folds.size()), "fold"),
                                                 score.horizon, format_count(r.series.size()), r.device, r.precision));
  page.paragraph(roll_headline(score));
  const auto figure = [](double value, const char* form) {
    return std::isfinite(value) ? fmt::format(fmt::runtime(form), value) : std::string("–");
  };
  std::vector<std::pair<std::string, std::string>> figures = {
      {"skill vs. naive", figure(100 * score.skill_naive, "{:.1f} %")},
      {"p-value", figure(score.against_naive.p_value, "{:.2g}")},
      {"MASE", figure(score.model.mase, "{:.3f}")},
      {"sMAPE", figure(score.model.smape, "{:.3f}")},
      {"MAE ÷ naive's", figure(score.model.mae / score.naive.mae, "{:.3f}")}};
  for (const auto& level : score.levels)
    figures.emplace_back(fmt::format("inside {:g} %", level.level), figure(100 * level.coverage, "{:.1f} %"));
  figures.emplace_back("training time", format_duration(r.run.seconds));
  page.figures(figures);
  page.list(notes_of(r));
  page.heading("Errors");
  std::vector<double> model, naive, snaive;
  std::vector<FoldFigures> folds;
  for (const FoldScore& f : score.folds) {
    model.push_back(f.model.mase);
    naive.push_back(f.naive.mase);
    snaive.push_back(f.snaive.mase);
    folds.push_back({f.cutoff, f.refitted, f.series, f.steps, f.model.smape, f.model.mase, f.model.mae, f.skill_naive,
                     f.skill_snaive, f.coverage, mean_of(f.factors)});
  }
  page.plots({error_by_fold(model, naive, snaive), error_by_step(score.mase_by_step, score.naive_by_step)});
  if (const std::string drawn = skill_plot(score.series); !drawn.empty()) page.svg(drawn);
  if (!score.drawn.empty()) {
    page.heading("Forecasts");
    std::vector<std::string> fans;
    for (const forecast::DrawnForecast& drawn : score.drawn) fans.push_back(fan_of(r, drawn));
    page.plots(fans);
  }
  page.heading("Folds");
  page.table(fold_table(folds));
  page.heading("Training");
  page.plots({losses_plot(r), memory_plot(r.run.memory)});
  if (!r.run.timeline.empty()) page.svg(timeline_plot(r));  // empty if everything was already finished
  page.table(settings_table(r.settings));
  return page.html();
}

namespace {

HtmlTable trial_table(const forecast::Trial& trial) {
  HtmlTable table{.caption = "Accuracy on the held-out horizons", .header = {"model", "sMAPE", "MASE"}, .rows = {}};
  for (int64_t k = 1; k <= trial.origins; ++k)
    table.header.push_back(k == 1 ? "MASE, last horizon" : fmt::format("{} before", k - 1));
  const auto figure = [](double value) { return std::isfinite(value) ? fmt::format("{:.3f}", value) : "–"; };
  for (size_t i = 0; i < trial.scores.size(); ++i) {
    const forecast::TrialScore& score = trial.scores[i];
    table.rows.push_back(
        {score.name + (i == trial.chosen ? " (used)" : ""), figure(score.scores.smape), figure(score.scores.mase)});
    for (const double mase : score.mase) table.rows.back().push_back(figure(mase));
    table.rows.back().resize(table.header.size(), "–");
  }
  return table;
}

std::string trial_fan(const EnsembleRecord& r, const forecast::TrialForecast& of) {
  ForecastFan fan;
  fan.title = fmt::format("{}: {} (MASE {:.2f}), the last held-out horizon", of.which,
                          shortened(r.series.id(of.series), 40), of.mase);
  const auto known = r.series.series(of.series).first(static_cast<size_t>(of.known));
  const auto tail = known.last(std::min(known.size(), 6 * of.forecast.size()));
  fan.history.assign(tail.begin(), tail.end());
  fan.forecast = of.forecast;
  fan.actual.assign(of.actual.begin(), of.actual.end());
  for (const double level : forecast::interval_levels(r.settings)) {
    const auto half = r.trial.errors.half_widths(std::numeric_limits<int64_t>::max(), level);
    if (std::any_of(half.begin(), half.end(), [](double width) { return std::isnan(width); })) continue;
    auto bounds = forecast::bounds_around(of.forecast, half, forecast::interval_scale(known, r.model.season));
    fan.intervals.push_back({level, std::move(bounds.low), std::move(bounds.high)});
  }
  return svg(fan);
}

void add_trial(HtmlPage& page, const EnsembleRecord& r) {
  if (r.trial.origins == 0) return;
  page.heading("Accuracy");
  page.paragraph(fmt::format(
      "The same lanes, trained without the last {} of the series. Their errors set the widths of intervals.",
      r.trial.origins == 1 ? "horizon" : format_count(r.trial.origins, "horizon")));
  page.table(trial_table(r.trial));
  std::vector<std::string> fans;
  for (const forecast::TrialForecast& shown : r.trial.shown) fans.push_back(trial_fan(r, shown));
  if (!fans.empty()) page.plots(fans);
}

// Windows of an update: "64 × 2" if gradients are accumulated.
std::string windows_text(const forecast::ForecastSettings& s) {
  const int64_t parts = s.gradient_accumulation_steps;
  return parts > 1 ? fmt::format("{} × {}", format_count(s.windows_per_step() / parts), parts)
                   : format_count(s.windows_per_step());
}

// Training time per pass over all windows of the series.
double seconds_per_epoch(const EnsembleRecord& r, int64_t steps) {
  forecast::ForecastSettings one = r.settings;
  one.max_steps = 0;
  one.epochs = 1;
  const auto share = static_cast<double>(forecast::steps_of(one, r.series)) / static_cast<double>(steps);
  return r.trained.resumed_lanes > 0 ? std::nan("") : r.trained.seconds * share;
}

}  // namespace

std::string ensemble_html(const EnsembleRecord& r) {
  HtmlPage page("Training an ensemble of forecasting models",
                fmt::format("{} · horizon {} · {} series · {} in {}",
                            format_count(static_cast<int64_t>(r.model.lanes.size()), "lane"), r.model.horizon,
                            format_count(r.series.size()), r.device, r.precision));
  const int64_t steps = forecast::steps_of(r.settings, r.series);
  const double epoch = seconds_per_epoch(r, steps);
  page.figures({{"training time", format_duration(r.trained.seconds)},
                {"per epoch", std::isfinite(epoch) ? format_duration(epoch) : "–"},
                {"steps", format_count(steps)},
                {"windows per step", windows_text(r.settings)},
                {"lanes per wave", format_count(r.trained.plan.lanes_per_wave)},
                {"waves", format_count(r.trained.plan.waves)},
                {"planned", format_bytes(r.trained.plan.peak_bytes)},
                {"limit", format_bytes(r.trained.plan.limit_bytes)},
                {"memory in use before", format_bytes(r.used_before)},
                {"and after", format_bytes(r.used_after)}});
  add_trial(page, r);
  std::vector<LaneCurve> lanes;
  for (size_t g = 0, kept = 0; g < r.trained.curves.size(); ++g) {
    if (std::isnan(r.trained.last_losses[g])) continue;
    const ops::LaneSpec& spec = r.model.lanes[kept++].spec;
    lanes.push_back({fmt::format("{} · {}", spec.lookback, forecast::forecast_loss_name(spec.loss)),
                     {r.trained.curves[g].begin(), r.trained.curves[g].end()},
                     spec.loss == ops::ForecastLoss::smape});
  }
  page.heading("Training");
  page.plots({svg(losses_by_lane(lanes, forecast::kCurveSteps, steps, "Loss by lane")), memory_plot(r.trained.plan)});
  if (!r.forecasts.stacks.empty()) {
    page.heading("Components");
    page.paragraph("Contribution of each stack to the forecast of the first series, averaged over lanes.");
    std::vector<std::string> drawn;
    const size_t C = r.forecasts.stacks.size(), H = static_cast<size_t>(r.forecasts.horizon);
    for (size_t i = 0; i < std::min<size_t>(3, static_cast<size_t>(r.series.size())); ++i) {
      ComponentLines lines{shortened(r.series.id(static_cast<int64_t>(i)), 40), {}, {}};
      for (size_t c = 1; c < C; ++c) {  // the level would hide the others
        const auto first = r.forecasts.components.begin() + static_cast<std::ptrdiff_t>((i * C + c) * H);
        lines.names.push_back(r.forecasts.stacks[c]);
        lines.values.emplace_back(first, first + static_cast<std::ptrdiff_t>(H));
      }
      drawn.push_back(svg(lines));
    }
    page.plots(drawn);
  }
  page.table(settings_table(r.settings));
  return page.html();
}

}  // namespace brim::report
