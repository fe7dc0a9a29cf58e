// SPDX-License-Identifier: Apache-2.0
#include "forecast/baseline_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/thread_pool.h"
#include "forecast/ets.h"
#include "forecast/metrics.h"

namespace brim::forecast {
namespace {

constexpr int64_t kOrigins = 3;
// Weight of the mean error over all series, in origins of one series: few origins say little about a single series.
constexpr double kPooledOrigins = 3;

using Candidates = std::array<std::vector<double>, kCandidates>;
using Errors = std::array<double, kCandidates>;

Candidates candidates_of(std::span<const float> history, int64_t horizon, int64_t season) {
  Candidates all;
  all[0] = forecast_baseline(Baseline::snaive, history, horizon, season);
  all[1] = forecast_baseline(Baseline::theta, history, horizon, season);
  all[2] = forecast_baseline(Baseline::ets, history, horizon, season);
  for (size_t h = 0; h < all[1].size(); ++h) all[3].push_back((all[1][h] + all[2][h]) / 2);
  return all;
}

// Mean absolute errors, relative to their mean over the candidates, summed over the origins of a series.
struct SeriesErrors {
  Errors sums{};
  int64_t origins = 0;
};

SeriesErrors cross_validate(std::span<const float> values, int64_t horizon, int64_t season) {
  SeriesErrors out;
  const auto n = static_cast<int64_t>(values.size());
  for (int64_t k = 1; k <= kOrigins; ++k) {
    const int64_t known = n - k * horizon;
    if (known < std::max(kEtsPoints, season + 2)) break;
    const auto history = values.first(static_cast<size_t>(known));
    if (std::all_of(history.begin(), history.end(), [](float v) { return std::isnan(v); })) break;
    const auto actual = values.subspan(static_cast<size_t>(known), static_cast<size_t>(horizon));
    const Candidates all = candidates_of(history, horizon, season);
    Errors errors{};
    double mean = 0;
    for (size_t c = 0; c < kCandidates; ++c) {
      errors[c] = mae(all[c], actual);
      mean += errors[c] / kCandidates;
    }
    if (!(mean > 0) || !std::isfinite(mean)) continue;
    for (size_t c = 0; c < kCandidates; ++c) out.sums[c] += errors[c] / mean;
    ++out.origins;
  }
  return out;
}

// Mean over all origins of all series; the same for every candidate if no series is long enough.
Errors pooled(const std::vector<SeriesErrors>& all) {
  Errors mean{};
  int64_t origins = 0;
  for (const SeriesErrors& one : all) {
    origins += one.origins;
    for (size_t c = 0; c < kCandidates; ++c) mean[c] += one.sums[c];
  }
  if (origins == 0) return {1, 1, 1, 0.5};  // the mean of Theta and ETS is best on most data
  for (double& error : mean) error /= static_cast<double>(origins);
  return mean;
}

size_t best_candidate(const SeriesErrors& own, const Errors& all) {
  size_t best = 0;
  double least = std::numeric_limits<double>::infinity();
  for (size_t c = 0; c < kCandidates; ++c) {
    const double error = own.sums[c] + kPooledOrigins * all[c];
    if (error < least) {
      least = error;
      best = c;
    }
  }
  return best;
}

// Calls fn(series) for all series in parallel, reporting progress between blocks.
template <class Fn>
void for_all(const SeriesStore& series, const BaselineOptions& options, int64_t done, int64_t total, Fn fn) {
  constexpr int64_t kBlock = 64;
  ThreadPool pool(options.threads);
  for (int64_t first = 0; first < series.size(); first += kBlock * pool.size()) {
    if (options.stop != nullptr && options.stop->load(std::memory_order_relaxed))
      fail(ErrorCode::interrupted, "interrupted; nothing was written");
    if (options.progress) options.progress(done + first, total);
    const int64_t count = std::min(kBlock * pool.size(), series.size() - first);
    pool.parallel_for(static_cast<size_t>(count), [&](size_t i, int) { fn(static_cast<size_t>(first) + i); });
  }
}

}  // namespace

const char* candidate_name(size_t candidate) {
  constexpr const char* kNames[kCandidates] = {"seasonal naive", "Theta", "ETS", "mean of Theta and ETS"};
  return kNames[candidate];
}

BaselineForecasts forecast_all(Baseline baseline, const SeriesStore& series, const BaselineOptions& o) {
  const auto S = static_cast<size_t>(series.size());
  const auto values_of = [&](size_t i) { return series.series(static_cast<int64_t>(i)); };
  BaselineForecasts out;
  out.values.resize(S);
  if (baseline != Baseline::automatic) {
    for_all(series, o, 0, series.size(),
            [&](size_t i) { out.values[i] = forecast_baseline(baseline, values_of(i), o.horizon, o.season); });
    return out;
  }
  std::vector<SeriesErrors> errors(S);
  const int64_t total = 2 * series.size();
  for_all(series, o, 0, total, [&](size_t i) { errors[i] = cross_validate(values_of(i), o.horizon, o.season); });
  const Errors mean = pooled(errors);
  std::vector<size_t> choice(S);
  for_all(series, o, series.size(), total, [&](size_t i) {
    choice[i] = best_candidate(errors[i], mean);
    out.values[i] = candidates_of(values_of(i), o.horizon, o.season)[choice[i]];
  });
  for (const size_t c : choice) ++out.chosen[c];
  return out;
}

}  // namespace brim::forecast
