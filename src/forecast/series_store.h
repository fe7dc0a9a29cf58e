// SPDX-License-Identifier: Apache-2.0
// All series of a run: concatenated 32-bit values and start offsets, with NaN for missing points. Devices hold the same
// two arrays. Steps are counted in units of the frequency on a scale common to all series.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "rows/series_table.h"

namespace brim::forecast {

class SeriesStore {
 public:
  explicit SeriesStore(rows::SeriesTable table);
  SeriesStore(const SeriesStore&) = delete;  // the id index points into this object
  SeriesStore& operator=(const SeriesStore&) = delete;
  SeriesStore(SeriesStore&&) = default;
  SeriesStore& operator=(SeriesStore&&) = default;

  int64_t size() const { return static_cast<int64_t>(table_.ids.size()); }
  std::span<const float> values() const { return table_.values; }
  std::span<const int64_t> begin() const { return table_.begin; }  // size() + 1 entries
  std::span<const float> series(int64_t i) const {
    const auto from = static_cast<size_t>(table_.begin[static_cast<size_t>(i)]);
    const auto to = static_cast<size_t>(table_.begin[static_cast<size_t>(i) + 1]);
    return values().subspan(from, to - from);
  }
  const std::string& id(int64_t i) const { return table_.ids[static_cast<size_t>(i)]; }
  std::optional<int64_t> find(std::string_view id) const;
  // Copy of some series, each up to a number of points; future covariates stay known.
  struct Head {
    int64_t series, points;
  };
  SeriesStore heads(std::span<const Head> of) const;

  const rows::Frequency& frequency() const { return table_.frequency; }
  const std::vector<std::string>& notes() const { return table_.notes; }
  bool numbered() const { return table_.numbered; }  // points have no times and are numbered from 1
  // Steps of the first and the last value of a series.
  int64_t first_step(int64_t i) const {
    return rows::step_number(table_.frequency, table_.first[static_cast<size_t>(i)]);
  }
  int64_t last_step(int64_t i) const { return first_step(i) + static_cast<int64_t>(series(i).size()) - 1; }
  const std::vector<rows::CovariateValues>& covariates() const { return table_.covariates; }
  // File and line of the last row of a series; only for data with covariates.
  const std::string& last_row(int64_t i) const { return table_.last_row[static_cast<size_t>(i)]; }
  // Adds values of future covariates that follow the series, from a store with these columns.
  void extend_covariates(const SeriesStore& later);

  // Time of value `k` of series i; k may be past the end.
  int64_t time(int64_t i, int64_t k) const;
  // The same in the format of its file.
  std::string time_text(int64_t i, int64_t k) const;

 private:
  rows::SeriesTable table_;
  std::unordered_map<std::string_view, int64_t> by_id_;
};

}  // namespace brim::forecast
