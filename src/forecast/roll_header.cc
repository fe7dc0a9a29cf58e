// SPDX-License-Identifier: Apache-2.0
#include "forecast/roll_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

#include "base/error.h"
#include "base/units.h"
#include "forecast/state_file.h"
#include "io/quote_text.h"

namespace brim::forecast {
namespace {

namespace fs = std::filesystem;

constexpr const char* kHeaderOwner = "rolling run";
constexpr std::string_view kCovariates = "covariates=";

fs::path header_path(const fs::path& state) { return state / "run.bin"; }

[[noreturn]] void refuse_other_run(const fs::path& state, const std::string& what) {
  fail(ErrorCode::cannot_write, Remedy{"set `output` to another directory, or use the data and settings of that run"},
       "{}: contains another run: {}", state.parent_path().string(), what);
}

// The values of a column in the first `points` of a series. Categories are hashes of their names, because their indices
// depend on the order of the file.
std::vector<uint64_t> covariate_words(const rows::CovariateValues& values, const std::vector<uint64_t>& categories,
                                      int64_t series, int64_t points) {
  constexpr uint64_t kMissing = ~uint64_t{0};
  const auto from = static_cast<size_t>(values.begin[static_cast<size_t>(series)]),
             to = static_cast<size_t>(values.begin[static_cast<size_t>(series) + 1]);
  if (values.column.kind == rows::CovariateKind::fixed) points = std::min<int64_t>(points, 1);
  std::vector<uint64_t> words(static_cast<size_t>(points), kMissing);
  for (size_t t = 0; t < std::min(words.size(), to - from); ++t) {
    const float value = values.values[from + t];
    if (std::isnan(value)) continue;
    words[t] = values.column.categorical ? categories[static_cast<size_t>(value)] : std::bit_cast<uint32_t>(value);
  }
  return words;
}

std::vector<uint64_t> category_words(const rows::CovariateValues& values) {
  std::vector<uint64_t> words;
  for (const std::string& name : values.categories) {
    train::ContentHash hash;
    hash.add(std::string_view(name));
    words.push_back(hash.value()[0]);
  }
  return words;
}

// Points of a covariate that forecasts may have read: those of the series and, of future columns, known ones after it.
int64_t points_read(const rows::CovariateValues& values, const SeriesStore& series, int64_t i, const RollPlan& plan,
                    int64_t horizon) {
  const auto length = static_cast<int64_t>(series.series(i).size());
  if (values.column.kind != rows::CovariateKind::future) return length;
  const int64_t count = values.begin[static_cast<size_t>(i) + 1] - values.begin[static_cast<size_t>(i)];
  const int64_t last = plan.folds.back().cutoff + horizon - series.first_step(i) + 1;
  return std::max(length, std::min({count, last, length + horizon}));
}

// `points`: of a column and a series.
std::vector<CovariateHash> covariate_hashes(const SeriesStore& series,
                                            const std::function<int64_t(size_t, int64_t)>& points) {
  std::vector<CovariateHash> all;
  for (size_t c = 0; c < series.covariates().size(); ++c) {
    const std::vector<uint64_t> categories = category_words(series.covariates()[c]);
    for (int64_t i = 0; i < series.size(); ++i) {
      train::ContentHash hash;
      const int64_t count = points(c, i);
      hash.add_all(std::span<const uint64_t>(covariate_words(series.covariates()[c], categories, i, count)));
      all.push_back({count, hash.value()});
    }
  }
  return all;
}

void check_same_settings(const fs::path& state, const RunHeader& was, const std::vector<std::string>& lines) {
  for (size_t i = 0; i < std::min(lines.size(), was.lines.size()); ++i) {
    if (lines[i] == was.lines[i] || lines[i].starts_with(kCovariates)) continue;
    fail(ErrorCode::cannot_write,
         Remedy{fmt::format("set `{}` to continue it, or set `output` to another directory", was.lines[i])},
         "{}: contains a run with `{}`, but this run has `{}`", state.parent_path().string(), was.lines[i], lines[i]);
  }
}

// Points known to the earlier run must be unchanged.
void check_same_past(const fs::path& state, const RunHeader& was, const SeriesStore& series, bool extend) {
  if (static_cast<int64_t>(was.ids.size()) != series.size())
    refuse_other_run(state, fmt::format("it has {} series, the data has {}", was.ids.size(), series.size()));
  bool longer = false;
  for (size_t i = 0; i < was.ids.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    const std::string name = io::quote_text(series.id(at));
    if (was.ids[i] != series.id(at))
      refuse_other_run(state, fmt::format("its series {} is {}, now {}", i + 1, io::quote_text(was.ids[i]), name));
    const std::span<const float> then(was.values.data() + was.begin[i],
                                      static_cast<size_t>(was.begin[i + 1] - was.begin[i]));
    const auto now = series.series(at);
    if (was.first_steps[i] != series.first_step(at) || now.size() < then.size())
      refuse_other_run(state, fmt::format("the times of series {} differ", name));
    for (size_t k = 0; k < then.size(); ++k)
      if (then[k] != now[k] && !(std::isnan(then[k]) && std::isnan(now[k])))
        refuse_other_run(state, fmt::format("the value of series {} at {} is {}, now {}", name,
                                            series.time_text(at, static_cast<int64_t>(k)), then[k], now[k]));
    longer = longer || now.size() > then.size();
  }
  if (longer && !extend)
    fail(ErrorCode::cannot_write, Remedy{"set `extend=true` to continue after its last cutoff"},
         "{}: contains a run on shorter series", state.parent_path().string());
}

void check_same_covariates(const fs::path& state, const RunHeader& was, const std::vector<std::string>& lines,
                           const SeriesStore& series) {
  const auto S = static_cast<size_t>(series.size());
  if (was.covariates.size() == S * series.covariates().size()) {
    const auto now = covariate_hashes(
        series, [&](size_t c, int64_t i) { return was.covariates[c * S + static_cast<size_t>(i)].points; });
    for (size_t k = 0; k < now.size(); ++k)
      if (now[k].hash != was.covariates[k].hash)
        refuse_other_run(
            state, fmt::format("the values of column {} in series {} differ", series.covariates()[k / S].column.name,
                               io::quote_text(series.id(static_cast<int64_t>(k % S)))));
  }
  if (lines.back().starts_with(kCovariates) && lines.back() != was.lines.back())
    refuse_other_run(state, "the covariates before the first cutoff differ");
}

}  // namespace

std::optional<RunHeader> read_header(const fs::path& state) {
  auto file = StateReader::open(header_path(state), kHeaderOwner);
  if (!file) return std::nullopt;
  RunHeader h;
  for (auto n = file->get<uint64_t>(); n > 0; --n) h.lines.push_back(file->text());
  h.first_cutoff = file->get<int64_t>();
  h.folds = file->get<int64_t>();
  for (auto n = file->get<uint64_t>(); n > 0; --n) h.ids.push_back(file->text());
  h.first_steps = file->list<int64_t>();
  h.begin = file->list<int64_t>();
  h.values = file->list<float>();
  if (!file->at_end()) h.covariates = file->list<CovariateHash>();
  return h;
}

void write_header(const fs::path& state, const std::vector<std::string>& lines, const RollPlan& plan,
                  const SeriesStore& series, int64_t horizon) {
  StateWriter file(header_path(state), kHeaderOwner);
  file.put<uint64_t>(lines.size());
  for (const std::string& line : lines) file.text(line);
  file.put(plan.folds.front().cutoff);
  file.put(static_cast<int64_t>(plan.folds.size()));
  file.put(static_cast<uint64_t>(series.size()));
  std::vector<int64_t> first_steps;
  for (int64_t i = 0; i < series.size(); ++i) {
    file.text(series.id(i));
    first_steps.push_back(series.first_step(i));
  }
  file.list(first_steps);
  file.list(std::vector<int64_t>(series.begin().begin(), series.begin().end()));
  file.list(std::vector<float>(series.values().begin(), series.values().end()));
  if (!series.covariates().empty())
    file.list(covariate_hashes(
        series, [&](size_t c, int64_t i) { return points_read(series.covariates()[c], series, i, plan, horizon); }));
  file.commit();
}

void check_header(const fs::path& state, const RunHeader& was, const std::vector<std::string>& lines,
                  const RollPlan& plan, const SeriesStore& series, bool extend) {
  check_same_settings(state, was, lines);
  check_same_past(state, was, series, extend);
  check_same_covariates(state, was, lines, series);
  if (was.first_cutoff != plan.folds.front().cutoff)
    refuse_other_run(state,
                     fmt::format("it has {}, this run has {}", format_count(was.folds, "fold"), plan.folds.size()));
}

std::string covariate_line(const CovariateSpec& spec, const SeriesStore& series, std::span<const int64_t> known) {
  train::ContentHash hash;
  for (size_t c = 0; c < series.covariates().size(); ++c) {
    const rows::CovariateValues& values = series.covariates()[c];
    for (const std::string& name : spec.columns[c].categories) hash.add(std::string_view(name));
    const std::vector<uint64_t> categories = category_words(values);
    for (int64_t i = 0; i < series.size(); ++i) {
      const auto at = static_cast<size_t>(i);
      const int64_t count = std::clamp<int64_t>(known[at], 0, values.begin[at + 1] - values.begin[at]);
      if (values.column.categorical)
        hash.add_all(std::span<const uint64_t>(covariate_words(values, categories, i, count)));
      else
        hash.add_all(
            std::span(values.values).subspan(static_cast<size_t>(values.begin[at]), static_cast<size_t>(count)));
    }
  }
  return std::string(kCovariates) + hash.hex();
}

}  // namespace brim::forecast
