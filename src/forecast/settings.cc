// SPDX-License-Identifier: Apache-2.0
#include "forecast/settings.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <span>

#include "base/error.h"
#include "rows/labels.h"
#include "rows/row_reader.h"

namespace brim::forecast {
namespace {

using S = ForecastSettings;
using namespace setting;  // NOLINT: the kinds of values
using ops::ForecastLoss;
using ops::Sampling;
using ops::WindowScaler;
using rows::Frequency;
using setting::text;

constexpr Keep kSame = Keep::same;
constexpr int64_t kLongestHorizon = 10'000, kMostLookback = 1000, kMostBlocks = 1000, kWidest = 1 << 16;

const std::vector<std::pair<const char*, StackKind>> kStacks = {
    {"generic", StackKind::generic},  {"exogenous", StackKind::exogenous},
    {"identity", StackKind::generic},  // NeuralForecast's name
    {"trend", StackKind::trend},      {"seasonality", StackKind::seasonality},
};
const std::vector<std::pair<const char*, ForecastLoss>> kLosses = {
    {"smape", ForecastLoss::smape},       {"mape", ForecastLoss::mape},       {"mase", ForecastLoss::mase},
    {"mae", ForecastLoss::mae},           {"mse", ForecastLoss::mse},         {"huber", ForecastLoss::huber},
    {"quantile", ForecastLoss::quantile}, {"mqloss", ForecastLoss::quantile},
};

const std::vector<std::pair<const char*, Baseline>> kBaselines = {
    {"theta", Baseline::theta}, {"ets", Baseline::ets}, {"naive", Baseline::naive}};

// "2,3,5" or "2..7".
std::vector<int64_t> read_numbers(std::string_view v, int64_t least, int64_t most) {
  std::vector<int64_t> all;
  const auto take = [&](std::string_view word) {
    const int64_t n = read_whole_number(word);
    if (n < least || n > most) throw BadValue{fmt::format("must be integers from {} to {}", least, most)};
    return n;
  };
  for (const std::string& part : rows::split_names(v, ',')) {
    const size_t dots = part.find("..");
    const int64_t from = take(std::string_view(part).substr(0, dots));
    const int64_t to = dots == std::string::npos ? from : take(std::string_view(part).substr(dots + 2));
    if (to < from) throw BadValue{"a range must be ascending: 2..7"};
    for (int64_t n = from; n <= to; ++n) all.push_back(n);
  }
  if (all.empty()) throw BadValue{"must contain at least one number"};
  return all;
}

SettingValue<S> numbers(std::vector<int64_t> S::*m, int64_t least, int64_t most) {
  SettingValue<S> value;
  value.set = [=](S& s, std::string_view v) { s.*m = read_numbers(v, least, most); };
  value.get = [m](const S& s) { return fmt::format("{}", fmt::join(s.*m, ",")); };
  return value;
}

template <class E>
SettingValue<S> several(std::vector<E> S::*m, const std::vector<std::pair<const char*, E>>& names) {
  SettingValue<S> value;
  for (const auto& [name, unused] : names) value.choices.emplace_back(name);
  value.set = [m, names, choices = value.choices](S& s, std::string_view v) {
    std::vector<E> all;
    for (const std::string& word : rows::split_names(v, ',')) {
      const auto found =
          std::find_if(names.begin(), names.end(), [&](const auto& n) { return same_word(word, n.first); });
      if (found == names.end()) throw BadValue{use_one_of(choices)};
      all.push_back(found->second);
    }
    if (all.empty()) throw BadValue{use_one_of(choices)};
    s.*m = all;
  };
  value.get = [m, names](const S& s) {
    std::string out;
    for (const E e : s.*m) {
      const auto found = std::find_if(names.begin(), names.end(), [&](const auto& n) { return n.second == e; });
      out += (out.empty() ? "" : ",") + std::string(found->first);
    }
    return out;
  };
  return value;
}

// NeuralForecast's mlp_units: a list of widths, or one list per stack ("512,512;512,512"); all must be equal.
SettingValue<S> layer_widths() {
  SettingValue<S> value = numbers(&S::widths, 1, kWidest);
  value.set = [](S& s, std::string_view v) {
    std::vector<std::vector<int64_t>> stacks;
    for (const std::string& stack : rows::split_names(v, ';')) stacks.push_back(read_numbers(stack, 1, kWidest));
    if (stacks.empty()) throw BadValue{"must list the width of each layer: 512,512"};
    for (const auto& stack : stacks)
      if (stack != stacks[0]) throw BadValue{"all stacks must have the same layers"};
    if (std::adjacent_find(stacks[0].begin(), stacks[0].end(), std::not_equal_to<>()) != stacks[0].end())
      throw BadValue{"all layers of a block must have the same width"};
    s.widths = stacks[0];
  };
  return value;
}

SettingValue<S> frequency() {
  SettingValue<S> value;
  value.set = [](S& s, std::string_view v) {
    if (v == "auto") {
      s.freq.reset();
      return;
    }
    s.freq = rows::parse_frequency(v);
    if (!s.freq) throw BadValue{"must be auto, index or a pandas frequency: H, D, B, W, M, Q, Y, 15min"};
  };
  value.get = [](const S& s) { return s.freq ? rows::frequency_name(*s.freq) : "auto"; };
  return value;
}

SettingValue<S> levels() {
  SettingValue<S> value;
  value.set = [](S& s, std::string_view v) {
    for (const std::string& word : rows::split_names(v, ',')) {
      const double level = read_number(word);
      if (!(level > 0 && level < 100)) throw BadValue{"must be percentages between 0 and 100: 80,95"};
      s.level.push_back(level);
    }
  };
  value.get = [](const S& s) { return fmt::format("{}", fmt::join(s.level, ",")); };
  value.is_list = true;
  return value;
}

// Column names, separated by commas.
SettingValue<S> names(std::vector<std::string> S::*m) {
  SettingValue<S> value;
  value.set = [m](S& s, std::string_view v) {
    for (const std::string& name : rows::split_names(v, ','))
      if (std::find((s.*m).begin(), (s.*m).end(), name) == (s.*m).end()) (s.*m).push_back(name);
    if ((s.*m).empty()) throw BadValue{"must be column names: price,promotion"};
  };
  value.get = [m](const S& s) { return fmt::format("{}", fmt::join(s.*m, ",")); };
  value.is_list = true;
  return value;
}

SettingValue<S> shrink_factor() {
  SettingValue<S> value = text(&S::shrink);
  value.fault = [](const S& s) {
    if (s.shrink == "auto" || s.shrink == "none") return std::string();
    try {
      const double factor = read_number(s.shrink);
      if (factor >= 0 && factor <= 1) return std::string();
    } catch (const BadValue&) {  // rejected below
    }
    return std::string("must be auto, none or a factor from 0 to 1");
  };
  return value;
}

const char* horizon_bound(double n) { return n >= 1 && n <= kLongestHorizon ? nullptr : "must be from 1 to 10,000"; }

const char* held_out_bound(double n) { return n >= 0 && n <= 100 ? nullptr : "must be from 0 to 100"; }

SettingValue<S> given_horizon() {  // 0 means "not given" and cannot be set explicitly
  SettingValue<S> value = number(&S::horizon);
  value.set = [](S& s, std::string_view v) {
    s.horizon = read_whole_number(v);
    if (const char* what = horizon_bound(static_cast<double>(s.horizon))) throw BadValue{what};
  };
  value.get = [](const S& s) { return s.horizon > 0 ? fmt::format("{}", s.horizon) : std::string(); };
  return value;
}

SettingValue<S> tri_state(std::optional<bool> S::*m) {
  SettingValue<S> value;
  value.set = [m](S& s, std::string_view v) { s.*m = read_truth(v); };
  value.get = [m](const S& s) { return s.*m ? fmt::format("{}", *(s.*m)) : std::string(); };
  value.is_switch = true;
  return value;
}

// A NeuralForecast key with one supported value: windows are always padded before the start of a series.
SettingValue<S> start_padding() {
  SettingValue<S> value = truth(&S::start_padding);
  value.set = [set = value.set](S& s, std::string_view v) {
    set(s, v);
    if (!s.start_padding) throw BadValue{"only true is supported: windows may always begin before the series"};
  };
  return value;
}

// Optional count: hidden while 0, and 0 cannot be set explicitly.
template <class Number>
SettingValue<S> positive(Number S::*m) {
  SettingValue<S> value = number(m);
  value.set = [m, set = value.set](S& s, std::string_view v) {
    set(s, v);
    if (const char* what = above_zero(static_cast<double>(s.*m))) throw BadValue{what};
  };
  value.get = [m](const S& s) { return s.*m > 0 ? fmt::format("{}", s.*m) : std::string(); };
  return value;
}

// The order of all rows is that of the help.
std::vector<Setting<S>> series_rows() {
  using rows::GapRule;
  using rows::SeriesLayout;
  return {
      {"data", "files of series (csv, tsv, jsonl; also .gz and .zst) or a directory of them; repeatable",
       texts(&S::data)},
      {"actual", "files with the values that follow the data; repeatable", texts(&S::actual)},
      {"model",
       "model directory, or naive, snaive, naive2, theta, ets or auto; for training: nbeats alone, or auto (default): "
       "combined with baselines by held-out error",
       text(&S::model)},
      {"forecast", "file of forecasts to evaluate", text(&S::forecast_file)},
      {"output", "output file or directory", text(&S::output)},
      {"alias", "name of the forecast column", text(&S::alias)},
      {"layout",
       "auto, long (a row per point), wide (a row per series), columns (a column per series) or jsonl (an object per "
       "series)",
       choice(&S::layout, {{"auto", SeriesLayout::automatic},
                           {"long", SeriesLayout::long_rows},
                           {"wide", SeriesLayout::wide},
                           {"columns", SeriesLayout::columns},
                           {"jsonl", SeriesLayout::jsonl}})},
      {"id_column", "column of the series id (default: unique_id or similar, else the file name)", text(&S::id_column)},
      {"time_column", "column of the times (default: ds or similar)", text(&S::time_column)},
      {"target_column", "column of the values (default: y or similar)", text(&S::target_column)},
      {"freq", "auto (most frequent interval), index (row numbers) or a pandas frequency: H, D, B, W, M, Q, Y, 15min",
       frequency(), kSame},
      {"gaps", "missing points: mask, error or fill (with the previous value)",
       choice(&S::gaps, {{"mask", GapRule::mask}, {"error", GapRule::error}, {"fill", GapRule::fill}}), kSame},
      {"delimiter", "column separator (default: detected): ';', '|', … or tab", train::delimiter_value<S>()},
      {"future_columns",
       "covariates known for the points to forecast too: price,promotion",
       names(&S::future_columns),
       kSame,
       {"futr_exog_list"}},
      {"past_columns",
       "covariates known up to the last value of a series",
       names(&S::past_columns),
       kSame,
       {"hist_exog_list"}},
      {"static_columns", "covariates with one value per series", names(&S::static_columns), kSame, {"stat_exog_list"}},
      {"categorical", "covariates whose values are categories, not numbers", names(&S::categorical), kSame},
      {"calendar", "add covariates of the date: hour, weekday, day of the month and of the year", truth(&S::calendar),
       kSame},
      {"from", "model to continue the training of, with its settings", text(&S::from), kSame},
  };
}

std::vector<Setting<S>> forecast_rows() {
  return {
      {"horizon", "number of points to forecast", given_horizon(), kSame, {"h"}},
      {"season", "length of a season in points (default: by frequency: 24 hourly, 12 monthly, 4 quarterly, else 1)",
       positive(&S::season), kSame},
      {"level", "prediction intervals in percent: 80,95", levels(), Keep::report},
      {"held_out", "horizons at the end of the series to hold out for the widths of intervals; 0: none",
       number(&S::held_out, held_out_bound), Keep::report},
      {"baselines", "fitted baselines to compare with: theta, ets; naive: only the naive ones",
       several(&S::baselines, kBaselines)},
  };
}

std::vector<Setting<S>> network_rows() {
  return {
      {"preset", "paper (18 models, 30 blocks of width 512), fast (8 models, 6 of width 128) or interpretable",
       choice(&S::preset, {{"fast", Preset::fast}, {"paper", Preset::paper}, {"interpretable", Preset::interpretable}}),
       kSame},
      {"stack_types", "type of each stack: exogenous, generic, trend or seasonality", several(&S::stack_types, kStacks),
       kSame},
      {"n_blocks", "number of blocks of each stack", numbers(&S::n_blocks, 1, kMostBlocks), kSame},
      {"mlp_units", "widths of the layers of a block: 512,512,512,512", layer_widths(), kSame},
      {"shared_weights",
       "share weights between the blocks of a stack",
       tri_state(&S::shared_weights),
       kSame,
       {"shared_weights_in_stack"}},
      {"n_harmonics", "number of harmonics of seasonality stacks", number(&S::n_harmonics, above_zero), kSame},
      {"n_basis", "polynomial degree of trend stacks", number(&S::n_basis, not_negative), kSame, {"n_polynomials"}},
      {"lookbacks", "input lengths in horizons, one model each: 2..7 or 2,3,5",
       numbers(&S::lookbacks, 1, kMostLookback), kSame},
      {"input_size", "input length in points, instead of `lookbacks`", positive(&S::input_size), kSame},
      {"losses",
       "losses, one model each: smape, mape, mase, mae, mse, huber or quantile",
       several(&S::losses, kLosses),
       kSame,
       {"loss"}},
      {"repeats", "models per lookback and loss", number(&S::repeats, above_zero), kSame},
  };
}

std::vector<Setting<S>> training_rows() {
  return {
      {"history_size", "use training windows that end within this many horizons of the end of a series",
       positive(&S::history_size), kSame},
      {"max_steps", "number of updates", positive(&S::max_steps), kSame, {"iterations"}},
      {"epochs", "passes over all windows, instead of `max_steps`", positive(&S::epochs), kSame},
      {"batch_size", "windows per update", positive(&S::batch_size), kSame},
      {"windows_batch_size", "windows per update (NeuralForecast's name; batch_size is ignored then)",
       positive(&S::windows_batch_size), kSame},
      {"num_lr_decays", "number of times the learning rate is halved", number(&S::num_lr_decays, not_negative), kSame},
      {"val_check_steps", "steps between evaluations", number(&S::val_check_steps, above_zero), kSame},
      {"early_stop_patience_steps", "evaluations without improvement before stopping; 0 or -1: never",
       number(&S::early_stop_patience, [](double n) { return n >= -1 ? nullptr : "must be -1 or more"; }), kSame},
      {"scaler_type", "how to scale windows: last (by last value and spread) or none",
       choice(&S::scaler,
              {{"last", WindowScaler::last}, {"none", WindowScaler::none}, {"identity", WindowScaler::none}}),
       kSame},
      {"sampling", "what to sample uniformly: series or windows",
       choice(&S::sampling, {{"series", Sampling::series}, {"windows", Sampling::windows}}), kSame},
      {"loss_mean", "points in the mean of the loss: all (missing ones count as 0) or valid",
       choice(&S::mean_of_valid, {{"all", false}, {"valid", true}}), kSame},
      {"start_padding_enabled", "allow windows that begin before the series", start_padding(), kSame},
      {"random_seed", "random seed of weights and windows", number(&S::seed, not_negative), kSame, {"seed"}},
      {"target_utilization", "target utilisation in percent, shown in the report",
       number(&S::target_utilization, [](double n) { return n >= 0 && n <= 100 ? nullptr : "must be from 0 to 100"; }),
       Keep::report},
  };
}

std::vector<Setting<S>> rolling_rows() {
  return {
      {"folds", "number of cutoffs to forecast from", positive(&S::folds), kSame, {"n_windows"}},
      {"step", "points between cutoffs", number(&S::step, above_zero), kSame, {"step_size"}},
      {"refit", "folds between trainings", number(&S::refit, above_zero), kSame},
      {"window", "train only on this many points before the cutoff (default: all)", positive(&S::window), kSame},
      {"gap", "points before the cutoff to exclude from training", number(&S::gap, not_negative), kSame},
      {"warm", "start refits from: none (new weights), anchor (a base model) or chain (the previous fold)",
       choice(&S::warm, {{"none", WarmStart::none}, {"anchor", WarmStart::anchor}, {"chain", WarmStart::chain}}),
       kSame},
      {"warm_steps", "updates of warm-started folds (default: a tenth of the full number)", positive(&S::warm_steps),
       kSame},
      {"anchor_every", "folds between trainings of the base model (default: train it once)", positive(&S::anchor_every),
       kSame},
      {"shrink", "shrink forecasts towards the last value: auto, none or a factor", shrink_factor(), kSame},
      {"save_steps", "steps between checkpoints (default: about every 30 seconds)", positive(&S::save_steps)},
      {"plot", "page to write with plots of the forecasts", text(&S::plot)},
      {"plot_series", "id of a series to plot (default: the first eight); repeatable", texts(&S::plot_series)},
      {"components", "also write the contribution of the level and of each stack", truth(&S::components)},
      {"keep_models", "keep the models of all folds", truth(&S::keep_models)},
      {"extend", "continue after the last cutoff of an earlier run", truth(&S::extend)},
  };
}

std::vector<Setting<S>> rows_of_table() {
  std::vector<Setting<S>> all;
  for (auto part :
       {series_rows(), forecast_rows(), network_rows(), training_rows(), rolling_rows(), train::run_rows<S>()})
    std::move(part.begin(), part.end(), std::back_inserter(all));
  SettingValue<S> ignored_switch;
  ignored_switch.is_switch = true;
#define IGNORED(key, why) all.push_back({key, why});
#define IGNORED_SWITCH(key, why) all.push_back({key, why, ignored_switch});
#include "forecast/ignored_keys.inc"
#undef IGNORED_SWITCH
#undef IGNORED
  return all;
}

// Lists of one-byte values are spans of constants: for vectors, GCC 13 emits a false overflow warning here.
struct PresetValues {
  std::span<const StackKind> stacks;
  std::vector<int64_t> blocks, widths;
  bool shared;
  int64_t batch;
  std::vector<int64_t> lookbacks;
  std::span<const ForecastLoss> losses;
  // By frequency, as in the N-BEATS experiments: long series of high frequencies use more history and fewer steps.
  int64_t slow_steps, fast_steps;
  double history = 10;  // except for slow frequencies
};

constexpr StackKind kGeneric[] = {StackKind::generic}, kInterpretable[] = {StackKind::trend, StackKind::seasonality};
constexpr ForecastLoss kPaperLosses[] = {ForecastLoss::smape, ForecastLoss::mape, ForecastLoss::mase},
                       kFastLosses[] = {ForecastLoss::smape, ForecastLoss::mase};

PresetValues values_of(Preset preset) {
  switch (preset) {
    case Preset::paper:
      return {kGeneric, {30}, {512, 512, 512, 512}, false, 1024, {2, 3, 4, 5, 6, 7}, kPaperLosses, 15'000, 5'000};
    case Preset::interpretable:
      // Trend blocks are 256 wide and seasonal ones 2048, unless a width is given.
      return {kInterpretable, {3, 3}, {}, true, 1024, {2, 3, 4, 5, 6, 7}, kPaperLosses, 15'000, 5'000};
    case Preset::fast:
      break;
  }
  return {kGeneric, {6}, {128, 128, 128, 128}, false, 256, {4, 5, 6, 7}, kFastLosses, 1'500, 1'500};
}

}  // namespace

bool is_slow(const Frequency& f) { return f.unit == Frequency::Unit::month; }

const char* warm_start_name(WarmStart warm) {
  constexpr const char* names[] = {"none", "anchor", "chain"};
  return names[static_cast<size_t>(warm)];
}

const SettingsTable<ForecastSettings>& forecast_settings() {
  static const SettingsTable<ForecastSettings> table(rows_of_table(), {{"lr", "learning_rate"},
                                                                       {"num_epochs", "epochs"},
                                                                       {"steps", "max_steps"},
                                                                       {"frequency", "freq"},
                                                                       {"lookback", "lookbacks"},
                                                                       {"scaler", "scaler_type"},
                                                                       {"seasonality", "season"},
                                                                       {"season_length", "season"},
                                                                       {"test", "actual"}});
  return table;
}

std::string apply_setting(ForecastSettings& settings, std::string_view key, std::string_view value,
                          const std::string& where) {
  std::string note = forecast_settings().apply(settings, key, value, where);
  settings.note_origin(key, value, where);
  settings.given.insert(forecast_settings().find(key)->name);
  return note;
}

void clear_list(ForecastSettings& s, std::string_view key) {
  const auto* row = forecast_settings().find(key);
  if (row == nullptr) return;
  const std::string_view name = row->name;
  const std::pair<std::string_view, std::vector<std::string>*> lists[] = {{"data", &s.data},
                                                                          {"actual", &s.actual},
                                                                          {"plot_series", &s.plot_series},
                                                                          {"future_columns", &s.future_columns},
                                                                          {"past_columns", &s.past_columns},
                                                                          {"static_columns", &s.static_columns},
                                                                          {"categorical", &s.categorical}};
  for (const auto& [list, values] : lists)
    if (name == list) values->clear();
  if (name == "level") s.level.clear();
}

std::vector<std::string> apply_yaml(ForecastSettings& settings, const std::filesystem::path& path) {
  static const std::vector<SettingInfo> infos = forecast_settings().infos();
  train::YamlKeys keys;
  keys.blocks = {"forecast", "forecasting", "nbeats", "gpu_optimization"};
  keys.joined = {"stack_types", "n_blocks",       "mlp_units",    "lookbacks",      "losses",     "loss",
                 "level",       "future_columns", "past_columns", "static_columns", "categorical"};
  keys.foreign = true;
  keys.find = [](std::string_view key) { return train::find_info(infos, key); };
  keys.nearest = [](std::string_view key) {
    const std::string hint = hint_for(key, "").key;
    return hint.empty() ? forecast_settings().nearest(key) : hint;
  };
  keys.apply = [&](std::string_view key, std::string_view value, const std::string& where) {
    return apply_setting(settings, key, value, where);
  };
  return train::apply_yaml(keys, path);
}

rows::SeriesReaderOptions ForecastSettings::reader_options() const {
  rows::SeriesReaderOptions options;
  options.layout = layout;
  options.id_column = id_column;
  options.time_column = time_column;
  options.target_column = target_column;
  options.frequency = freq;
  options.gaps = gaps;
  options.delimiter = delimiter;
  options.covariates = covariate_columns();
  return options;
}

std::vector<rows::CovariateColumn> ForecastSettings::covariate_columns() const {
  std::vector<rows::CovariateColumn> all;
  const auto add = [&](const std::vector<std::string>& names, rows::CovariateKind kind) {
    for (const std::string& name : names)
      all.push_back({name, kind, std::find(categorical.begin(), categorical.end(), name) != categorical.end()});
  };
  add(future_columns, rows::CovariateKind::future);
  add(past_columns, rows::CovariateKind::past);
  add(static_columns, rows::CovariateKind::fixed);
  return all;
}

int64_t season_for(const ForecastSettings& settings, const Frequency& recognised) {
  return settings.season > 0 ? settings.season : rows::season_of(settings.freq.value_or(recognised));
}

std::vector<std::string> apply_preset(ForecastSettings& s, const Frequency& recognised) {
  std::vector<std::string> notes;
  const Frequency frequency = s.freq.value_or(recognised);
  const PresetValues preset = values_of(s.preset);
  const auto fill = [](auto& given, const auto& value) {
    if (given.empty()) given.assign(value.begin(), value.end());
  };
  if (s.n_blocks.empty()) s.n_blocks = s.stack_types.empty() ? preset.blocks : std::vector{preset.blocks[0]};
  fill(s.stack_types, preset.stacks);
  if (s.n_blocks.size() == 1) s.n_blocks.resize(s.stack_types.size(), s.n_blocks[0]);
  fill(s.widths, preset.widths);
  if (!s.shared_weights) s.shared_weights = preset.shared;
  if (s.input_size == 0) fill(s.lookbacks, preset.lookbacks);
  fill(s.losses, preset.losses);
  if (s.windows_batch_size > 0 && s.batch_size > 0)
    notes.push_back(
        "`batch_size` is ignored: with `windows_batch_size` it counts series, and every step draws from all");
  if (s.windows_batch_size == 0 && s.batch_size == 0) s.batch_size = preset.batch;
  if (s.history_size == 0) s.history_size = is_slow(frequency) ? 1.5 : preset.history;
  if (s.max_steps == 0 && s.epochs == 0) s.max_steps = is_slow(frequency) ? preset.slow_steps : preset.fast_steps;
  return notes;
}

std::vector<double> interval_levels(const ForecastSettings& s) {
  return s.level.empty() ? std::vector<double>{80, 95} : s.level;
}

std::vector<std::string> run_lines(const ForecastSettings& s, ops::Precision precision,
                                   std::initializer_list<std::string_view> but) {
  // Settings added later, omitted by default so that runs of earlier versions resume.
  constexpr std::string_view kOptional[] = {"future_columns", "past_columns", "static_columns",
                                            "categorical",    "calendar",     "from"};
  std::vector<std::string> lines;
  for (const KeptSetting& kept : forecast_settings().kept(s)) {
    if (kept.keep != Keep::same || std::find(but.begin(), but.end(), kept.name) != but.end()) continue;
    const bool optional = std::find(std::begin(kOptional), std::end(kOptional), kept.name) != std::end(kOptional);
    if (!optional || (!kept.value.empty() && kept.value != "false")) lines.push_back(kept.name + "=" + kept.value);
  }
  lines.push_back(fmt::format("precision={}", precision_name(precision)));
  if (std::find(s.losses.begin(), s.losses.end(), ForecastLoss::quantile) != s.losses.end())
    lines.push_back(fmt::format("level={}", fmt::join(interval_levels(s), ",")));
  return lines;
}

namespace {

void check_covariates(const ForecastSettings& s) {
  const std::vector<rows::CovariateColumn> all = s.covariate_columns();
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t k = 0; k < i; ++k)
      if (all[k].name == all[i].name)
        fail(ErrorCode::usage, Remedy{"list every column once"}, "column {} is listed twice as a covariate",
             all[i].name);
    if (all[i].name == s.target_column || all[i].name == s.id_column || all[i].name == s.time_column)
      fail(ErrorCode::usage, Remedy{"list only further columns as covariates"},
           "column {} is a covariate and also the target, id or time", all[i].name);
  }
  for (const std::string& name : s.categorical)
    if (std::none_of(all.begin(), all.end(), [&](const auto& column) { return column.name == name; }))
      fail(ErrorCode::usage,
           Remedy{"add it to `future_columns`, `past_columns` or `static_columns`, or remove it from `categorical`"},
           "`categorical={}`: not a covariate", name);
}

}  // namespace

void check_settings(const ForecastSettings& s) {
  forecast_settings().check(s);
  check_covariates(s);
  if (s.input_size > 0 && !s.lookbacks.empty())
    fail(ErrorCode::usage, Remedy{"set only one of them"}, "`input_size` and `lookbacks` cannot be combined");
  if (s.max_steps > 0 && s.epochs > 0)
    fail(ErrorCode::usage, Remedy{"set only one of them"}, "`max_steps` and `epochs` cannot be combined");
  if (!s.stack_types.empty() && s.n_blocks.size() > 1 && s.n_blocks.size() != s.stack_types.size())
    fail(ErrorCode::usage, Remedy{"give one number of blocks per stack, or one for all stacks"},
         "`n_blocks` has {} numbers, but `stack_types` has {} stacks", s.n_blocks.size(), s.stack_types.size());
  if (s.precision.precision == ops::Precision::fp8 || s.precision.precision == ops::Precision::int8)
    fail(ErrorCode::usage, "`precision={}` is not supported for training; use fp32, tf32 or bf16",
         plan::precision_text(s.precision));
  if (s.precision.precision == ops::Precision::fp16)
    fail(ErrorCode::usage, Remedy{"set `precision=bf16` or remove `precision`"},
         "`precision=fp16` is not supported: without loss scaling small gradients underflow, and values above 65,504 "
         "overflow");
  if (std::find(s.losses.begin(), s.losses.end(), ForecastLoss::quantile) != s.losses.end() && s.losses.size() > 1)
    fail(ErrorCode::usage, Remedy{"set `losses=quantile`"}, "`losses`: quantile cannot be combined with other losses");
  if (s.warm == WarmStart::none && (s.warm_steps > 0 || s.anchor_every > 0))
    fail(ErrorCode::usage, Remedy{"set `warm=anchor` or `warm=chain`"},
         "`warm_steps` and `anchor_every` require a warm start");
  if (s.anchor_every > 0 && s.warm != WarmStart::anchor)
    fail(ErrorCode::usage, Remedy{"set `warm=anchor`"}, "`anchor_every` requires `warm=anchor`");
}

}  // namespace brim::forecast
