// SPDX-License-Identifier: Apache-2.0
// Reads series from csv, tsv and jsonl files, compressed or not, from several files or a folder. Detects and reports
// layout and frequency. Files are read once, block by block; only a 32-bit float per point is kept.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/compress.h"
#include "rows/series_table.h"

namespace brim::rows {

enum class GapRule : uint8_t {
  mask,   // absent points stay absent
  error,  // absent points are an error
  fill,   // the previous value is repeated
};

struct SeriesReaderOptions {
  SeriesLayout layout = SeriesLayout::automatic;
  // Column names for the long and columns layouts. Empty: the usual names; without an id column, a file is one series
  // named after the file.
  std::string id_column, time_column, target_column;
  std::optional<Frequency> frequency;  // empty: the most frequent gap
  GapRule gaps = GapRule::mask;
  char delimiter = 0;  // 0: by file name, else by the first line
  // Long layout and objects only. Past and static columns may be absent from further files.
  std::vector<CovariateColumn> covariates;
  std::vector<std::string> omitted;  // columns that are neither read nor the target
  int64_t min_points = 2;            // shorter series are dropped if others remain
  size_t block_bytes = size_t{1} << 20;
  std::function<void(int64_t done, int64_t total)> progress;  // in bytes of the files
  const std::atomic<bool>* stop = nullptr;
};

// Folders are expanded to their files. Throws usage if a file does not exist, bad_data with file and line if the
// content cannot be parsed as series.
SeriesTable read_series(const std::vector<std::string>& paths, const SeriesReaderOptions& options);
// Reads one stream that is already open (tests).
SeriesTable read_series(std::unique_ptr<io::ByteSource> source, const SeriesReaderOptions& options);

std::vector<std::string> series_files(const std::vector<std::string>& paths);

// Parses a number in a series file: absent values (blank, NA, NaN, null, None) are NaN. Returns nullopt if it is not a
// number.
std::optional<double> parse_series_value(std::string_view text);

}  // namespace brim::rows
