// SPDX-License-Identifier: Apache-2.0
// Fuzz entry: parses arbitrary bytes as a series file (first byte: layout, gaps, covariates and read size). Only data
// errors are allowed, the result must not depend on read boundaries, and the table must be consistent.
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/error.h"
#include "rows/series_reader.h"

namespace brim::rows::series_fuzz {

// Aborts unless there is one list per series, of as many values as the kind allows, all finite or missing.
inline void check_covariates(const SeriesTable& t, const CovariateValues& v) {
  if (v.begin.size() != t.begin.size() || v.begin.front() != 0) std::abort();
  if (v.begin.back() != static_cast<int64_t>(v.values.size())) std::abort();
  for (size_t s = 0; s < t.ids.size(); ++s) {
    const int64_t count = v.begin[s + 1] - v.begin[s], points = t.begin[s + 1] - t.begin[s];
    if (count < 0 || (v.column.kind == CovariateKind::past && count > points)) std::abort();
    if (v.column.kind == CovariateKind::fixed && count != 1) std::abort();
  }
  for (const float value : v.values) {
    if (std::isinf(value)) std::abort();
    if (v.column.categorical && !(std::isnan(value) || (value >= 0 && value < static_cast<float>(v.categories.size()))))
      std::abort();
  }
}

inline std::string read_as_text(const std::string& bytes, uint8_t choice, size_t piece, size_t block) {
  SeriesReaderOptions options;
  options.layout = static_cast<SeriesLayout>(choice % 5);
  options.gaps = static_cast<GapRule>(choice / 5 % 3);
  if (choice / 15 % 2 == 1) options.frequency = Frequency{};
  if (const int columns = choice / 30 % 3; columns != 1)
    options.covariates = {{"p", CovariateKind::future, columns == 2},
                          {"q", CovariateKind::past, false},
                          {"r", CovariateKind::fixed, columns == 2}};
  options.block_bytes = block;
  try {
    const SeriesTable t = read_series(io::memory_source("fuzz", bytes, piece), options);
    if (t.begin.size() != t.ids.size() + 1 || t.first.size() != t.ids.size()) std::abort();
    if (t.begin.back() != static_cast<int64_t>(t.values.size())) std::abort();
    std::string all = frequency_name(t.frequency);
    for (size_t s = 0; s < t.ids.size(); ++s) {
      const auto from = static_cast<size_t>(t.begin[s]), to = static_cast<size_t>(t.begin[s + 1]);
      if (to < from + 2 || std::isnan(t.values[from]) || std::isnan(t.values[to - 1])) std::abort();
      all += "\n" + t.ids[s] + " " + std::to_string(t.first[s]);
      for (size_t i = from; i < to; ++i) {
        if (std::isinf(t.values[i])) std::abort();
        all += " " + (std::isnan(t.values[i]) ? "-" : std::to_string(t.values[i]));
      }
    }
    for (const CovariateValues& covariate : t.covariates) {
      check_covariates(t, covariate);
      for (const std::string& category : covariate.categories) all += "\n" + category;
      for (const float v : covariate.values) all += " " + (std::isnan(v) ? "-" : std::to_string(v));
    }
    return all;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::bad_data) std::abort();
    return error.what();
  }
}

}  // namespace brim::rows::series_fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace brim::rows::series_fuzz;
  if (size == 0) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string whole = read_as_text(bytes, data[0], SIZE_MAX, bytes.size() + 16);
  if (whole != read_as_text(bytes, data[0], 1 + (data[0] >> 4), 16)) std::abort();
  return 0;
}
