// SPDX-License-Identifier: Apache-2.0
// Collects the covariate columns of series files point by point and aligns them with the series once all are known.
#pragma once
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "rows/series_builder.h"

namespace brim::rows {

class CovariateBuilder {
 public:
  CovariateBuilder(const SeriesReaderOptions& options, const std::vector<std::string>& files);

  const std::vector<CovariateColumn>& columns() const { return columns_; }
  // Index of a category, in order of appearance; NaN for blank text.
  double category(size_t column, std::string_view text);
  // Values of the next point of a series, one per column.
  void add(std::string_view id, const Timestamp* time, std::span<const double> values, uint32_t file, int64_t line);
  // Values of a whole series one step apart; for fixed columns the first one.
  void add_steps(std::string_view id, const Timestamp* first, std::span<const std::vector<float>> values, uint32_t file,
                 int64_t line);
  // Adds the columns to the finished table of the targets.
  void finish(SeriesTable& table);

 private:
  struct SeriesRow {
    std::vector<double> fixed;  // by column; NaN for other kinds
    uint32_t file = 0;
    int64_t line = 0;
  };
  SeriesRow& row_of(std::string_view id, uint32_t file, int64_t line);
  void set_fixed(SeriesRow& row, std::string_view id, size_t column, double value) const;
  CovariateValues aligned(size_t column, const SeriesTable& series);

  SeriesReaderOptions options_;
  const std::vector<std::string>& files_;
  const std::vector<CovariateColumn> columns_;
  std::deque<SeriesBuilder> builders_;  // by column; unused for fixed ones
  std::vector<std::vector<std::string>> categories_;
  std::vector<std::unordered_map<std::string, size_t>> category_index_;
  std::unordered_map<std::string, SeriesRow> rows_;
  std::string last_id_;
  SeriesRow* last_row_ = nullptr;
};

}  // namespace brim::rows
