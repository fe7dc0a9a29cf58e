// SPDX-License-Identifier: Apache-2.0
#include "rows/covariate_builder.h"

#include <cmath>

#include "base/error.h"
#include "io/quote_text.h"

namespace brim::rows {

CovariateBuilder::CovariateBuilder(const SeriesReaderOptions& options, const std::vector<std::string>& files)
    : options_(options), files_(files), columns_(options.covariates) {
  if (options_.gaps == GapRule::error) options_.gaps = GapRule::mask;
  options_.min_points = 1;
  for (size_t c = 0; c < columns_.size(); ++c) builders_.emplace_back(options_, files_);
  categories_.resize(columns_.size());
  category_index_.resize(columns_.size());
}

double CovariateBuilder::category(size_t column, std::string_view text) {
  if (const auto value = parse_series_value(text); value && std::isnan(*value)) return *value;
  const auto [found, added] = category_index_[column].try_emplace(std::string(text), categories_[column].size());
  if (added) categories_[column].emplace_back(text);
  return static_cast<double>(found->second);
}

CovariateBuilder::SeriesRow& CovariateBuilder::row_of(std::string_view id, uint32_t file, int64_t line) {
  if (last_row_ == nullptr || last_id_ != id) {
    last_id_ = std::string(id);
    SeriesRow& row = rows_[last_id_];
    if (row.fixed.empty()) row.fixed.assign(columns_.size(), std::nan(""));
    last_row_ = &row;
  }
  last_row_->file = file;
  last_row_->line = line;
  return *last_row_;
}

void CovariateBuilder::set_fixed(SeriesRow& row, std::string_view id, size_t column, double value) const {
  if (std::isnan(value)) return;
  const double before = row.fixed[column];
  if (!std::isnan(before) && before != value) {
    const auto shown = [&](double v) {
      return columns_[column].categorical ? io::quote_text(categories_[column][static_cast<size_t>(v)])
                                          : fmt::format("{:g}", v);
    };
    fail(ErrorCode::bad_data, Remedy{"move the column from `static_columns` to `past_columns` or `future_columns`"},
         "{}: line {}: series {}: static column {} is {}, but {} in an earlier row", files_[row.file], row.line,
         io::quote_text(id), columns_[column].name, shown(value), shown(before));
  }
  row.fixed[column] = value;
}

void CovariateBuilder::add(std::string_view id, const Timestamp* time, std::span<const double> values, uint32_t file,
                           int64_t line) {
  SeriesRow& row = row_of(id, file, line);
  for (size_t c = 0; c < columns_.size(); ++c) {
    if (columns_[c].kind == CovariateKind::fixed)
      set_fixed(row, id, c, values[c]);
    else
      builders_[c].add(builders_[c].series(id, file, line), time, values[c], file, line);
  }
}

void CovariateBuilder::add_steps(std::string_view id, const Timestamp* first,
                                 std::span<const std::vector<float>> values, uint32_t file, int64_t line) {
  SeriesRow& row = row_of(id, file, line);
  for (size_t c = 0; c < columns_.size(); ++c) {
    if (columns_[c].kind == CovariateKind::fixed)
      set_fixed(row, id, c, values[c].empty() ? std::nan("") : static_cast<double>(values[c][0]));
    else
      builders_[c].add_steps(builders_[c].new_series(id, file, line), first, values[c], file, line);
  }
}

// The values of one column on the steps of the series, which start at the same row of the file.
CovariateValues CovariateBuilder::aligned(size_t c, const SeriesTable& series) {
  CovariateValues out;
  out.column = columns_[c];
  out.categories = categories_[c];
  const auto absent = std::nanf("");
  if (out.column.kind == CovariateKind::fixed) {
    for (const std::string& id : series.ids) {
      const auto found = rows_.find(id);
      out.values.push_back(found == rows_.end() ? absent : static_cast<float>(found->second.fixed[c]));
      out.begin.push_back(static_cast<int64_t>(out.values.size()));
    }
    return out;
  }
  const SeriesTable own = builders_[c].finish(series.layout);
  std::unordered_map<std::string_view, size_t> at;
  for (size_t i = 0; i < own.ids.size(); ++i) at.emplace(own.ids[i], i);
  for (size_t i = 0; i < series.ids.size(); ++i) {
    const int64_t points = series.begin[i + 1] - series.begin[i];
    const auto found = at.find(series.ids[i]);
    std::vector<float> values(static_cast<size_t>(points), absent);
    if (found != at.end()) {
      const size_t k = found->second;
      const int64_t shift =
          step_number(series.frequency, own.first[k]) - step_number(series.frequency, series.first[i]);
      const int64_t count = own.begin[k + 1] - own.begin[k];
      const int64_t end = out.column.kind == CovariateKind::past ? points : std::max(points, shift + count);
      values.resize(static_cast<size_t>(end), absent);
      for (int64_t t = std::max<int64_t>(0, -shift); t < count && t + shift < end; ++t)
        values[static_cast<size_t>(t + shift)] = own.values[static_cast<size_t>(own.begin[k] + t)];
    }
    out.values.insert(out.values.end(), values.begin(), values.end());
    out.begin.push_back(static_cast<int64_t>(out.values.size()));
  }
  return out;
}

void CovariateBuilder::finish(SeriesTable& table) {
  if (columns_.empty()) return;
  options_.frequency = table.frequency;
  if (table.numbered)
    for (SeriesBuilder& builder : builders_) builder.number_points();
  for (size_t c = 0; c < columns_.size(); ++c) table.covariates.push_back(aligned(c, table));
  for (const std::string& id : table.ids) {
    const auto found = rows_.find(id);
    table.last_row.push_back(
        found == rows_.end() ? "" : fmt::format("{}: line {}", files_[found->second.file], found->second.line));
  }
}

}  // namespace brim::rows
