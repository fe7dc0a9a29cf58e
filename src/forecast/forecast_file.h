// SPDX-License-Identifier: Apache-2.0
// Forecast files with NeuralForecast's columns: unique_id, ds, one column per model, MODEL-lo-80 and MODEL-hi-80 for
// intervals. Columns cutoff and y are ignored.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "forecast/evaluate.h"
#include "forecast/series_store.h"
#include "io/atomic_file.h"
#include "io/compress.h"
#include "rows/row_reader.h"
#include "rows/series_reader.h"

namespace brim::forecast {

// Writes csv, tsv or jsonl, chosen by file name (also .gz and .zst); "-" is stdout as csv. Files are replaced
// atomically.
class ForecastWriter {
 public:
  // With `rolling`, rows have a cutoff column after ds.
  ForecastWriter(const std::string& path, std::vector<std::string> columns, const std::atomic<bool>* stop,
                 bool rolling = false);
  ~ForecastWriter();
  // One value per column.
  void write(std::string_view id, std::string_view ds, std::span<const double> values, std::string_view cutoff = "");
  void commit();

 private:
  void flush();
  std::vector<std::string> columns_;
  rows::RowFormat format_;
  bool rolling_;
  std::unique_ptr<io::AtomicFile> file_;  // null: stdout
  std::unique_ptr<io::ByteSink> sink_;
  std::string text_;
};

// Options for a file that continues `data`: same frequency, any length.
rows::SeriesReaderOptions options_after(const SeriesStore& data, rows::SeriesReaderOptions options);

// Reads a file of forecasts, or any file of series, for evaluation; a missing step is bad_data. `column` selects the
// model; if empty, the first possible column is used.
Forecaster read_forecasts(const std::string& path, const std::string& column, const SeriesStore& data,
                          rows::SeriesReaderOptions options, std::string* name);

}  // namespace brim::forecast
