// SPDX-License-Identifier: Apache-2.0
#include "forecast/series_store.h"

#include <algorithm>

namespace brim::forecast {

SeriesStore::SeriesStore(rows::SeriesTable table) : table_(std::move(table)) {
  by_id_.reserve(table_.ids.size());
  for (size_t i = 0; i < table_.ids.size(); ++i) by_id_.emplace(table_.ids[i], static_cast<int64_t>(i));
}

std::optional<int64_t> SeriesStore::find(std::string_view id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? std::nullopt : std::optional(found->second);
}

std::string SeriesStore::time_text(int64_t i, int64_t k) const {
  const int64_t first = table_.first[static_cast<size_t>(i)];
  // Count from the last value, so that month ends follow the end of the series.
  const auto last = static_cast<int64_t>(series(i).size()) - 1;
  const int64_t time = rows::time_after(table_.frequency, first, std::min(k, last));
  return rows::format_time(k > last ? rows::time_after(table_.frequency, time, k - last) : time, table_.style);
}

}  // namespace brim::forecast
