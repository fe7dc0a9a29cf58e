// SPDX-License-Identifier: Apache-2.0
// Parallel baseline forecasts for a set of series, and the choice among baselines by cross-validation on the last
// horizons of each series. The baselines themselves are in baselines.h.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "forecast/baselines.h"
#include "forecast/series_store.h"

namespace brim::forecast {

struct BaselineOptions {
  int64_t horizon = 1, season = 1;
  int threads = 1;
  std::function<void(int64_t done, int64_t total)> progress;  // counts series
  const std::atomic<bool>* stop = nullptr;                    // throws interrupted
};

// Candidates of the choice: seasonal naive, Theta, ETS, and the mean of Theta and ETS.
constexpr size_t kCandidates = 4;
const char* candidate_name(size_t candidate);

struct BaselineForecasts {
  std::vector<std::vector<double>> values;    // by series
  std::array<int64_t, kCandidates> chosen{};  // series per candidate; zero unless `automatic`
};
// Forecasts the steps after the end of each series. The result does not depend on the number of threads.
BaselineForecasts forecast_all(Baseline baseline, const SeriesStore& series, const BaselineOptions& options);

}  // namespace brim::forecast
