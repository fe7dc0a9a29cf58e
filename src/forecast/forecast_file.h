// SPDX-License-Identifier: Apache-2.0
// Files of forecasts in NeuralForecast's columns: unique_id, ds, one for the model, MODEL-lo-80 and MODEL-hi-80 for its
// intervals; cutoff and y beside them are passed over.
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

// csv, tsv or jsonl by the name (.gz and .zst too); "-" is stdout as csv. Whole or absent.
class ForecastWriter {
 public:
  // `rolling`: rows have a cutoff after ds.
  ForecastWriter(const std::string& path, std::vector<std::string> columns, const std::atomic<bool>* stop,
                 bool rolling = false);
  ~ForecastWriter();
  // A value per column.
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

// A file of forecasts, or any file of series, as what is measured: steps it does not have are bad_data. `column` is the
// model's; empty: the first that can be one.
Forecaster read_forecasts(const std::string& path, const std::string& column, const SeriesStore& data,
                          rows::SeriesReaderOptions options, std::string* name);

}  // namespace brim::forecast
