// SPDX-License-Identifier: Apache-2.0
// All series of a run: values end to end in 32-bit floats, `begin` says where each starts, NaN is an absent point. The
// same two arrays are what a device holds. Steps are the frequency's, numbered alike in all series.
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
  SeriesStore(const SeriesStore&) = delete;  // ids are looked up by where they lie
  SeriesStore& operator=(const SeriesStore&) = delete;
  SeriesStore(SeriesStore&&) = default;
  SeriesStore& operator=(SeriesStore&&) = default;

  int64_t size() const { return static_cast<int64_t>(table_.ids.size()); }
  std::span<const float> values() const { return table_.values; }
  std::span<const int64_t> begin() const { return table_.begin; }  // size() + 1
  std::span<const float> series(int64_t i) const {
    const auto from = static_cast<size_t>(table_.begin[static_cast<size_t>(i)]);
    const auto to = static_cast<size_t>(table_.begin[static_cast<size_t>(i) + 1]);
    return values().subspan(from, to - from);
  }
  const std::string& id(int64_t i) const { return table_.ids[static_cast<size_t>(i)]; }
  std::optional<int64_t> find(std::string_view id) const;

  const rows::Frequency& frequency() const { return table_.frequency; }
  const std::vector<std::string>& notes() const { return table_.notes; }
  bool numbered() const { return table_.numbered; }  // points have no times and are counted from 1
  // The step of a series' first value and of its last.
  int64_t first_step(int64_t i) const {
    return rows::step_number(table_.frequency, table_.first[static_cast<size_t>(i)]);
  }
  int64_t last_step(int64_t i) const { return first_step(i) + static_cast<int64_t>(series(i).size()) - 1; }
  // The time of value `k` of series i as its files would write it; k may lie past the end.
  std::string time_text(int64_t i, int64_t k) const;

 private:
  rows::SeriesTable table_;
  std::unordered_map<std::string_view, int64_t> by_id_;
};

}  // namespace brim::forecast
