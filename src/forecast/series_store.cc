// SPDX-License-Identifier: Apache-2.0
#include "forecast/series_store.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace brim::forecast {

SeriesStore::SeriesStore(rows::SeriesTable table) : table_(std::move(table)) {
  by_id_.reserve(table_.ids.size());
  for (size_t i = 0; i < table_.ids.size(); ++i) by_id_.emplace(table_.ids[i], static_cast<int64_t>(i));
}

std::optional<int64_t> SeriesStore::find(std::string_view id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? std::nullopt : std::optional(found->second);
}

SeriesStore SeriesStore::heads(std::span<const Head> of) const {
  rows::SeriesTable table;
  table.frequency = table_.frequency;
  table.style = table_.style;
  table.layout = table_.layout;
  table.numbered = table_.numbered;
  for (const Head& head : of) {
    const auto values = series(head.series).first(static_cast<size_t>(head.points));
    table.ids.push_back(id(head.series));
    table.first.push_back(table_.first[static_cast<size_t>(head.series)]);
    table.values.insert(table.values.end(), values.begin(), values.end());
    table.begin.push_back(static_cast<int64_t>(table.values.size()));
    if (!table_.last_row.empty()) table.last_row.push_back(last_row(head.series));
  }
  for (const rows::CovariateValues& own : table_.covariates) {
    rows::CovariateValues& part = table.covariates.emplace_back();
    part.column = own.column;
    part.categories = own.categories;
    for (const Head& head : of) {
      const auto from = own.begin[static_cast<size_t>(head.series)];
      int64_t to = own.begin[static_cast<size_t>(head.series) + 1];
      if (own.column.kind == rows::CovariateKind::past) to = std::min(to, from + head.points);
      part.values.insert(part.values.end(), own.values.begin() + from, own.values.begin() + to);
      part.begin.push_back(static_cast<int64_t>(part.values.size()));
    }
  }
  return SeriesStore(std::move(table));
}

int64_t SeriesStore::time(int64_t i, int64_t k) const {
  const int64_t first = table_.first[static_cast<size_t>(i)];
  // Count from the last value, so that month ends follow the end of the series.
  const auto last = static_cast<int64_t>(series(i).size()) - 1;
  const int64_t time = rows::time_after(table_.frequency, first, std::min(k, last));
  return k > last ? rows::time_after(table_.frequency, time, k - last) : time;
}

std::string SeriesStore::time_text(int64_t i, int64_t k) const { return rows::format_time(time(i, k), table_.style); }

void SeriesStore::extend_covariates(const SeriesStore& later) {
  for (size_t c = 0; c < table_.covariates.size(); ++c) {
    rows::CovariateValues& own = table_.covariates[c];
    if (own.column.kind != rows::CovariateKind::future) continue;
    const auto found = std::find_if(later.table_.covariates.begin(), later.table_.covariates.end(),
                                    [&](const auto& values) { return values.column.name == own.column.name; });
    BRIM_CHECK(found != later.table_.covariates.end(), "no values of column {}", own.column.name);
    const rows::CovariateValues& other = *found;
    rows::CovariateValues joined{own.column, own.categories, {}, {0}};
    // Category indices of the other store as indices of this one.
    std::vector<float> index;
    for (const std::string& name : other.categories) {
      const auto known = std::find(joined.categories.begin(), joined.categories.end(), name);
      index.push_back(static_cast<float>(known - joined.categories.begin()));
      if (known == joined.categories.end()) joined.categories.push_back(name);
    }
    for (int64_t i = 0; i < size(); ++i) {
      const auto from = own.values.begin() + own.begin[static_cast<size_t>(i)],
                 to = own.values.begin() + own.begin[static_cast<size_t>(i) + 1];
      std::vector<float> values(from, to);
      if (const auto k = later.find(id(i))) {
        // Numbered points follow those of this store.
        const int64_t shift =
            later.numbered() ? static_cast<int64_t>(series(i).size()) : later.first_step(*k) - first_step(i);
        for (int64_t t = other.begin[static_cast<size_t>(*k)]; t < other.begin[static_cast<size_t>(*k) + 1]; ++t) {
          const int64_t at = shift + t - other.begin[static_cast<size_t>(*k)];
          if (at < static_cast<int64_t>(series(i).size())) continue;
          if (at >= static_cast<int64_t>(values.size())) values.resize(static_cast<size_t>(at) + 1, std::nanf(""));
          const float value = other.values[static_cast<size_t>(t)];
          values[static_cast<size_t>(at)] =
              index.empty() || std::isnan(value) ? value : index[static_cast<size_t>(value)];
        }
      }
      joined.values.insert(joined.values.end(), values.begin(), values.end());
      joined.begin.push_back(static_cast<int64_t>(joined.values.size()));
    }
    own = std::move(joined);
  }
}

}  // namespace brim::forecast
