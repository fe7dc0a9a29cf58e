// SPDX-License-Identifier: Apache-2.0
// Forecasts with models and baselines, and scores of forecasts against actual values. Training is in
// forecast_run_train.cc.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/thread_pool.h"
#include "base/units.h"
#include "forecast/baseline_choice.h"
#include "forecast/forecast_file.h"
#include "forecast/held_out.h"
#include "forecast/trial.h"
#include "io/atomic_file.h"
#include "report/forecast_report.h"
#include "report/forecast_run.h"
#include "rows/file_checks.h"

namespace brim::report {
namespace {

using forecast::Baseline;
using forecast::ForecastSettings;
using forecast::SeriesStore;

constexpr const char* kModelNames = "naive, snaive, naive2, theta, ets or auto";

// Forecaster by name or model directory.
struct NamedModel {
  std::optional<Baseline> baseline;
  forecast::NbeatsModel nbeats;  // if given as a directory
};

NamedModel open_model(const std::string& model) {
  NamedModel named;
  named.baseline = forecast::baseline_of(model);
  if (named.baseline) return named;
  std::error_code ec;
  if (!std::filesystem::is_directory(model, ec))
    fail(ErrorCode::usage, Remedy{fmt::format("use {}, or a directory written by `brim forecast train`", kModelNames)},
         "`model={}`: unknown", model);
  named.nbeats = forecast::load_nbeats(model);
  return named;
}

// Calendar features have the meaning of the training only for dates with the same frequency.
void require_calendar(const ForecastSettings& s, const forecast::NbeatsModel& model, const SeriesStore& store) {
  if (model.covariates.calendar.empty()) return;
  if (!has_dates(store))
    fail(ErrorCode::bad_data, Remedy{"give dates in the time column"},
         "{}: {} was trained with calendar features, which require dates, but the points are numbered", s.data[0],
         s.model);
  if (const std::string freq = frequency_name(store.frequency()); freq != model.freq)
    fail(ErrorCode::bad_data, Remedy{fmt::format("give data of this frequency, or set `freq={}`", model.freq)},
         "{}: the frequency is {}, but {} was trained with calendar features on {}", s.data[0], freq, s.model,
         model.freq);
}

// A block reads the covariates of all points that the model forecasts: the first forecasts depend on the last ones.
void check_covariates(const ForecastSettings& s, const forecast::NbeatsModel& model, const SeriesStore& store) {
  require_calendar(s, model, store);
  require_future(model.covariates, store, model.horizon);
  log_unknown_categories(model.covariates, store);
}

std::function<void(int64_t, int64_t)> series_progress(const ForecastContext& context, std::string title) {
  return [&context, title = std::move(title)](int64_t done, int64_t total) {
    context.observer.progress(title, static_cast<double>(done), static_cast<double>(total),
                              format_count(done) + " series");
  };
}

forecast::EnsembleForecasts ensemble_forecasts(const ForecastSettings& s, const forecast::NbeatsModel& model,
                                               const SeriesStore& store, const ForecastContext& context) {
  if (s.horizon > model.horizon)
    fail(ErrorCode::usage, Remedy{"set a shorter one, or omit it"}, "`horizon={}`: {} forecasts at most {}", s.horizon,
         s.model, format_count(model.horizon, "point"));
  forecast::EnsembleDevice on(s);
  auto forecasts =
      predict_ensemble(on, model, store, s.components, series_progress(context, "forecasting"), &context.stop);
  context.observer.progress_ends();
  return forecasts;
}

// Interval of a quantile model: level in percent and indices of its bounds.
struct QuantileLevel {
  double level;
  size_t low, high;
};
std::vector<QuantileLevel> levels_of(const std::vector<float>& quantiles) {
  std::vector<QuantileLevel> levels;
  for (size_t low = quantiles.size() / 2; low-- > 0;)
    levels.push_back(
        {std::round(1e4 * (1 - 2 * static_cast<double>(quantiles[low]))) / 100, low, quantiles.size() - 1 - low});
  return levels;
}

// Intervals of one level, in percent.
struct IntervalWidths {
  double level;
  std::vector<double> half;  // by step ahead, in units of interval_scale()
};

int threads_of(const ForecastSettings& s) { return s.threads > 0 ? s.threads : hardware_threads(); }

// Point forecasts of all series, with intervals from quantiles of the model or from held-out errors.
class AllForecasts {
 public:
  AllForecasts(const ForecastSettings& s, const NamedModel& model, const SeriesStore& store, int64_t horizon,
               int64_t season, const ForecastContext& context)
      : store_(store), season_(season) {
    if (model.baseline) {
      baseline(s, *model.baseline, horizon, context);
      return;
    }
    ensemble_ = ensemble_forecasts(s, model.nbeats, store, context);
    if (!model.nbeats.has_baselines())
      levels_ = levels_of(ensemble_.quantiles);
    else  // the quantiles are those of N-BEATS alone
      combine(s, model.nbeats.combined, std::min(horizon, model.nbeats.horizon), context.stop);
    if (!s.level.empty()) ensemble_levels(s, model.nbeats);
  }

  std::vector<double> levels() const {
    std::vector<double> all;
    for (const QuantileLevel& level : levels_) all.push_back(level.level);
    for (const IntervalWidths& width : widths_) all.push_back(width.level);
    return all;
  }
  std::vector<double> point(int64_t i) const {
    return baseline_.empty() ? ensemble_.point(i) : baseline_[static_cast<size_t>(i)];
  }
  forecast::IntervalBounds interval(int64_t i, size_t level) const {
    if (level < levels_.size()) return {ensemble_.of(i, levels_[level].low), ensemble_.of(i, levels_[level].high)};
    return forecast::bounds_around(point(i), widths_[level - levels_.size()].half,
                                   forecast::interval_scale(store_.series(i), season_));
  }
  const forecast::EnsembleForecasts& ensemble() const { return ensemble_; }

 private:
  void baseline(const ForecastSettings& s, Baseline which, int64_t horizon, const ForecastContext& context) {
    const forecast::BaselineOptions how{horizon, season_, threads_of(s), series_progress(context, "forecasting"),
                                        &context.stop};
    auto all = forecast_all(which, store_, how);
    baseline_ = std::move(all.values);
    if (!s.level.empty()) {
      if (s.held_out == 0) fail(ErrorCode::usage, Remedy{"set `held_out=2`"}, "`level` requires held-out horizons");
      const int64_t origins = wanted_origins(s, store_, horizon);
      const auto errors = held_out_errors(store_, horizon, season_, origins, [&](const forecast::HeldOut& origin) {
        return forecast_all(which, origin.known, how).values;
      });
      for (const double level : s.level) widths_.push_back({level, half_widths_for(errors, level)});
    }
    context.observer.progress_ends();
    if (which != Baseline::automatic) return;
    std::string chosen;
    for (size_t c = 0; c < forecast::kCandidates; ++c)
      if (all.chosen[c] > 0)
        chosen += fmt::format("{}{} for {}", chosen.empty() ? "" : ", ", forecast::candidate_name(c),
                              format_count(all.chosen[c]));
    context.observer.note(fmt::format("chosen by cross-validation: {} series", chosen));
  }

  // The mean of the models that the training has chosen.
  void combine(const ForecastSettings& s, const std::vector<std::string>& names, int64_t horizon,
               const std::atomic<bool>& stop) {
    const forecast::BaselineOptions how{horizon, season_, threads_of(s), {}, &stop};
    baseline_.assign(static_cast<size_t>(store_.size()), std::vector<double>(static_cast<size_t>(horizon)));
    for (const std::string& name : names) {
      const auto which = forecast::baseline_of(name);
      const auto all = which ? forecast_all(*which, store_, how).values : std::vector<std::vector<double>>();
      for (size_t i = 0; i < baseline_.size(); ++i) {
        const std::vector<double> values = which ? all[i] : ensemble_.point(static_cast<int64_t>(i));
        for (size_t h = 0; h < baseline_[i].size(); ++h)
          baseline_[i][h] += values[h] / static_cast<double>(names.size());
      }
    }
  }

  void ensemble_levels(const ForecastSettings& s, const forecast::NbeatsModel& model) {
    if (!levels_.empty()) {
      for (const double level : s.level)
        if (std::none_of(levels_.begin(), levels_.end(), [&](const QuantileLevel& q) { return q.level == level; }))
          fail(ErrorCode::usage, Remedy{"omit `level`, or train with this level"},
               "`level={:g}`: {} has quantiles for {} %", level, s.model, fmt::join(levels(), " and "));
      std::erase_if(levels_, [&](const QuantileLevel& q) {
        return std::find(s.level.begin(), s.level.end(), q.level) == s.level.end();
      });
      return;
    }
    if (model.held_out.empty())
      fail(ErrorCode::usage, Remedy{"train it again with `held_out=2`"},
           "`level`: {} has no errors of held-out horizons, which the widths of intervals require", s.model);
    const auto errors = forecast::ConformalIntervals::of_sizes(model.held_out);
    for (const double level : s.level) widths_.push_back({level, half_widths_for(errors, level)});
  }

  const SeriesStore& store_;
  const int64_t season_;
  forecast::EnsembleForecasts ensemble_;
  std::vector<std::vector<double>> baseline_;
  std::vector<QuantileLevel> levels_;
  std::vector<IntervalWidths> widths_;
};

std::vector<std::string> columns_of(const std::string& alias, const AllForecasts& all) {
  std::vector<std::string> columns = {alias};
  for (const double level : all.levels())
    for (const char* bound : {"lo", "hi"}) columns.push_back(fmt::format("{}-{}-{:g}", alias, bound, level));
  const std::vector<std::string>& stacks = all.ensemble().stacks;
  for (size_t c = 0; c < stacks.size(); ++c) {
    const bool twice = std::count(stacks.begin(), stacks.end(), stacks[c]) > 1;
    columns.push_back(fmt::format("{}-{}{}", alias, stacks[c], twice ? fmt::format("-{}", c) : ""));
  }
  return columns;
}

// Values of a series by column.
std::vector<std::vector<double>> column_values(const AllForecasts& all, int64_t i) {
  std::vector<std::vector<double>> values = {all.point(i)};
  const size_t levels = all.levels().size();
  for (size_t l = 0; l < levels; ++l) {
    forecast::IntervalBounds bounds = all.interval(i, l);
    values.push_back(std::move(bounds.low));
    values.push_back(std::move(bounds.high));
  }
  const forecast::EnsembleForecasts& e = all.ensemble();
  const auto C = static_cast<int64_t>(e.stacks.size());
  for (int64_t c = 0; c < C; ++c) {
    const auto first = e.components.begin() + (i * C + c) * e.horizon;
    values.emplace_back(first, first + e.horizon);
  }
  return values;
}

// Indices of the series to plot. Throws usage for unknown ids.
std::vector<int64_t> plotted_series(const ForecastSettings& s, const SeriesStore& store) {
  constexpr int64_t kFirst = 8;
  std::vector<int64_t> all;
  for (const std::string& id : s.plot_series) {
    const auto found = store.find(id);
    if (!found)
      fail(ErrorCode::usage, Remedy{"use an id of the data"}, "`plot_series={}`: not in {} (first id: {})", id,
           s.data[0], store.id(0));
    all.push_back(*found);
  }
  for (int64_t i = 0; s.plot_series.empty() && i < std::min(kFirst, store.size()); ++i) all.push_back(i);
  return all;
}

void check_plot(const ForecastSettings& s) {
  if (s.plot.empty()) {
    if (!s.plot_series.empty()) fail(ErrorCode::usage, Remedy{"set `plot=FILE`"}, "`plot_series` requires `plot`");
    return;
  }
  if (s.plot == s.output) fail(ErrorCode::usage, Remedy{"set another file"}, "`plot={}`: is also the output", s.plot);
  rows::refuse_output_over_input(s.plot, rows::series_files(s.data));
  io::require_writable(s.plot);
}

// `horizon`: number of points to plot; a model may forecast more.
std::string plot_page(const ForecastSettings& s, const SeriesStore& store, const AllForecasts& all,
                      const std::string& alias, const std::vector<int64_t>& indices, int64_t horizon) {
  const auto points = static_cast<size_t>(horizon);
  ForecastPage page{fmt::format("{} · {} series of {}", alias, format_count(store.size()), s.data[0]), {}};
  for (const int64_t i : indices) {
    PlottedSeries& plotted = page.series.emplace_back();
    ForecastFan& fan = plotted.fan;
    fan.title = store.id(i);
    fan.forecast = all.point(i);
    fan.forecast.resize(points);
    const auto known = store.series(i);
    const auto tail = known.last(std::min(known.size(), std::max<size_t>(6 * points, 24)));
    fan.history.assign(tail.begin(), tail.end());
    const std::vector<double> levels = all.levels();
    for (size_t l = 0; l < levels.size(); ++l) {
      forecast::IntervalBounds bounds = all.interval(i, l);
      for (auto* bound : {&bounds.low, &bounds.high}) bound->resize(points);
      fan.intervals.push_back({levels[l], std::move(bounds.low), std::move(bounds.high)});
    }
    plotted.components.title = "Components";
    const forecast::EnsembleForecasts& e = all.ensemble();
    const auto C = static_cast<int64_t>(e.stacks.size());
    for (int64_t c = 1; c < C; ++c) {  // the level would hide the others
      const auto first = e.components.begin() + (i * C + c) * e.horizon;
      plotted.components.names.push_back(e.stacks[static_cast<size_t>(c)]);
      plotted.components.values.emplace_back(first, first + horizon);
    }
  }
  return forecast_html(page);
}

}  // namespace

PredictedSeries predict_series(const ForecastSettings& s, ForecastRows& rows, const ForecastContext& context) {
  if (s.model.empty())
    fail(ErrorCode::usage, Remedy{fmt::format("set `model` to a directory, {}", kModelNames)}, "`model` is required");
  const NamedModel model = open_model(s.model);
  const int64_t horizon = s.horizon > 0 ? s.horizon : model.nbeats.horizon;
  if (horizon == 0) fail(ErrorCode::usage, Remedy{"set `horizon=12`"}, "`horizon` is required");
  check_plot(s);
  const SeriesStore store =
      read_store(s.data, model.baseline ? s.reader_options() : reader_options_for(s, s.model, model.nbeats.covariates),
                 "data", context);
  check_covariates(s, model.nbeats, store);
  const std::vector<int64_t> plotted = s.plot.empty() ? std::vector<int64_t>() : plotted_series(s, store);
  const int64_t season = model.baseline ? season_for(s, store.frequency()) : model.nbeats.season;
  if (model.baseline && *model.baseline != Baseline::naive)
    context.observer.note("season: " + format_count(season, "point"));
  const AllForecasts all(s, model, store, horizon, season, context);
  const std::string alias = !s.alias.empty()                ? s.alias
                            : model.baseline                ? column_of(*model.baseline)
                            : model.nbeats.combined.empty() ? "NBEATS"
                                                            : column_of(Baseline::automatic);
  rows.begin(columns_of(alias, all));
  const auto on_progress = series_progress(context, "writing");
  for (int64_t i = 0; i < store.size(); ++i) {
    if (context.stop) fail(ErrorCode::interrupted, "interrupted; no output was written");
    on_progress(i, store.size());
    const auto length = static_cast<int64_t>(store.series(i).size());
    const auto values = column_values(all, i);
    std::vector<double> row(values.size());
    for (int64_t h = 0; h < horizon; ++h) {
      for (size_t c = 0; c < values.size(); ++c) row[c] = values[c][static_cast<size_t>(h)];
      rows.write(store.id(i), store.time_text(i, length + h), row, "");
    }
  }
  context.observer.progress_ends();
  if (!s.plot.empty()) io::write_file_atomically(s.plot, plot_page(s, store, all, alias, plotted, horizon));
  return {store.size(), horizon};
}

namespace {

nlohmann::ordered_json number_or_null(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
}

nlohmann::ordered_json to_json(const forecast::Scores& s) {
  return {{"smape", number_or_null(s.smape)},
          {"mase", number_or_null(s.mase)},
          {"owa", number_or_null(s.owa)},
          {"mae", number_or_null(s.mae)},
          {"mape", number_or_null(s.mape)}};
}

nlohmann::ordered_json to_json(const EvaluatedForecasts& evaluated) {
  const forecast::ForecastEvaluation& e = evaluated.figures;
  nlohmann::ordered_json j = {{"schema_version", 1},
                              {"model", evaluated.name},
                              {"series", e.series},
                              {"points", e.points},
                              {"horizon", e.horizon},
                              {"season", e.season},
                              {"frequency", evaluated.frequency},
                              {"series_not_in_data", e.not_in_data},
                              {"series_without_scale", e.without_scale}};
  j.update(to_json(e.model));
  j["skill_naive"] = number_or_null(e.skill_naive);
  j["skill_snaive"] = number_or_null(e.skill_snaive);
  j["naive"] = to_json(e.naive);
  j["snaive"] = to_json(e.snaive);
  j["naive2"] = to_json(e.naive2);
  for (const forecast::BaselineScore& b : e.baselines) {
    if (b.baseline != Baseline::theta && b.baseline != Baseline::ets) continue;
    j[baseline_name(b.baseline)] = to_json(b.scores);
  }
  const forecast::BaselineScore& best = e.baselines[e.best];
  j["best_baseline"] = baseline_name(best.baseline);
  j["skill_best"] = number_or_null(forecast::skill(e.model.mase, best.scores.mase));
  j["against_best"] = {{"statistic", number_or_null(best.test.statistic)},
                       {"p_value", number_or_null(best.test.p_value)}};
  j["crps"] = number_or_null(e.crps);
  j["scaled_crps"] = number_or_null(e.scaled_crps);
  j["levels"] = nlohmann::ordered_json::array();
  for (const auto& level : e.levels)
    j["levels"].push_back({{"level", level.level},
                           {"coverage", number_or_null(level.coverage)},
                           {"pinball", number_or_null(level.pinball)}});
  j["mase_by_step"] = nlohmann::ordered_json::array();
  for (const double step : e.mase_by_step) j["mase_by_step"].push_back(number_or_null(step));
  return j;
}

forecast::Forecaster forecaster_of(const ForecastSettings& s, const NamedModel& model, const AllForecasts& all) {
  const auto first = [&](std::vector<double> values, int64_t horizon) {
    if (horizon > static_cast<int64_t>(values.size()))
      fail(ErrorCode::bad_data, "{}: {} points after the data, but {} forecasts at most {}", s.actual[0], horizon,
           s.model, model.nbeats.horizon);
    values.resize(static_cast<size_t>(horizon));
    return values;
  };
  forecast::Forecaster forecaster;
  forecaster.values = [&all, first](int64_t i, int64_t horizon) { return first(all.point(i), horizon); };
  const std::vector<double> levels = all.levels();
  for (size_t l = 0; l < levels.size(); ++l)
    forecaster.intervals.push_back(
        {levels[l], [&all, first, l](int64_t i, int64_t horizon) { return first(all.interval(i, l).low, horizon); },
         [&all, first, l](int64_t i, int64_t horizon) { return first(all.interval(i, l).high, horizon); }});
  return forecaster;
}

// Past and static columns come from the data.
rows::SeriesReaderOptions with_future_only(rows::SeriesReaderOptions options) {
  for (const rows::CovariateColumn& column : options.covariates)
    if (column.kind != rows::CovariateKind::future) options.omitted.push_back(column.name);
  std::erase_if(options.covariates, [](const auto& column) { return column.kind != rows::CovariateKind::future; });
  return options;
}

}  // namespace

EvaluatedForecasts evaluate_forecasts(const ForecastSettings& s, const ForecastContext& context) {
  if (s.actual.empty())
    fail(ErrorCode::usage, Remedy{"set `actual=FILE`, the values after the data"}, "`actual` is required");
  if (s.model.empty() == s.forecast_file.empty())
    fail(ErrorCode::usage, Remedy{fmt::format("set `model` (a directory, {}) or `forecast=FILE`", kModelNames)},
         "exactly one of `model` and `forecast` is required");
  NamedModel model;
  if (!s.model.empty()) model = open_model(s.model);
  rows::SeriesReaderOptions reading = s.reader_options();
  if (!s.model.empty() && !model.baseline) reading = reader_options_for(s, s.model, model.nbeats.covariates);
  if (s.model.empty()) reading.covariates.clear();
  SeriesStore data = read_store(s.data, reading, "data", context);
  const SeriesStore actual = read_store(s.actual, with_future_only(options_after(data, reading)), "actual", context);
  data.extend_covariates(actual);
  forecast::EvaluateOptions how;
  how.season = season_for(s, data.frequency());
  how.threads = threads_of(s);
  how.baselines = s.baselines;
  how.stop = &context.stop;
  how.progress = series_progress(context, "evaluating");
  EvaluatedForecasts evaluated{{}, s.model, frequency_name(data.frequency())};
  forecast::Forecaster forecaster;
  std::optional<AllForecasts> all;
  if (s.model.empty()) {
    forecaster = read_forecasts(s.forecast_file, s.alias, data, reading, &evaluated.name);
  } else {
    const int64_t ahead = longest_horizon(data, actual);
    check_covariates(s, model.nbeats, data);
    const int64_t season = model.baseline ? how.season : model.nbeats.season;  // as predict
    all.emplace(s, model, data, ahead, season, context);
    forecaster = forecaster_of(s, model, *all);
  }
  evaluated.figures = evaluate(data, actual, forecaster, how);
  context.observer.progress_ends();
  return evaluated;
}

std::string evaluation_json(const EvaluatedForecasts& evaluated) {
  return to_json(evaluated).dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace brim::report
