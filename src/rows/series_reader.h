// SPDX-License-Identifier: Apache-2.0
// Series out of csv, tsv and jsonl files, compressed or not, several or a folder of them. Layout and frequency are
// recognised and reported. Files are read once, block by block; what is kept is a 32-bit float per point.
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
  error,  // they are refused
  fill,   // the value before is repeated
};

struct SeriesReaderOptions {
  SeriesLayout layout = SeriesLayout::automatic;
  // Long rows and columns: by name. Empty: the usual names; without an id column a file is a series of its own name.
  std::string id_column, time_column, target_column;
  std::optional<Frequency> frequency;  // none: the commonest gap
  GapRule gaps = GapRule::mask;
  char delimiter = 0;      // 0: by the name, else by the first line
  int64_t min_points = 2;  // series with fewer are left out where others remain
  size_t block_bytes = size_t{1} << 20;
  std::function<void(int64_t done, int64_t total)> progress;  // bytes of the files
  const std::atomic<bool>* stop = nullptr;
};

// Folders stand for the files in them. Throws usage where there is no such file, bad_data with file and line for what
// cannot be series.
SeriesTable read_series(const std::vector<std::string>& paths, const SeriesReaderOptions& options);
// One stream that is already open (tests).
SeriesTable read_series(std::unique_ptr<io::ByteSource> source, const SeriesReaderOptions& options);

std::vector<std::string> series_files(const std::vector<std::string>& paths);

// A number as files of series write it: absent (blank, NA, NaN, null, None) is NaN. Empty: no such number.
std::optional<double> parse_series_value(std::string_view text);

}  // namespace brim::rows
