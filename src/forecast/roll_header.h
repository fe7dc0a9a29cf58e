// SPDX-License-Identifier: Apache-2.0
// Header of the state of a rolling run: its settings, cutoffs and data. A run continues only with the same ones.
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "forecast/roll.h"

namespace brim::forecast {

// Hash of the first values of a covariate in one series.
struct CovariateHash {
  int64_t points = 0;
  std::array<uint64_t, 2> hash{};
};

struct RunHeader {
  std::vector<std::string> lines;  // settings and, with covariates, covariate_line() as the last
  int64_t first_cutoff = 0, folds = 0;
  std::vector<std::string> ids;
  std::vector<int64_t> first_steps, begin;
  std::vector<float> values;
  std::vector<CovariateHash> covariates;  // [column][series]; empty in headers of earlier versions
};

std::optional<RunHeader> read_header(const std::filesystem::path& state);
void write_header(const std::filesystem::path& state, const std::vector<std::string>& lines, const RollPlan& plan,
                  const SeriesStore& series, int64_t horizon);

// Throws cannot_write, naming the difference, if settings or data known to the run in `state` have changed.
void check_header(const std::filesystem::path& state, const RunHeader& was, const std::vector<std::string>& lines,
                  const RollPlan& plan, const SeriesStore& series, bool extend);

// Identifies the covariates of the first `known` points of each series, by which `spec` was fitted.
std::string covariate_line(const CovariateSpec& spec, const SeriesStore& series, std::span<const int64_t> known);

}  // namespace brim::forecast
