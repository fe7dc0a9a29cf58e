// SPDX-License-Identifier: Apache-2.0
#include "rows/series_reader.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/units.h"
#include "rows/covariate_builder.h"
#include "rows/row_reader.h"
#include "rows/series_builder.h"
#include "rows/series_file.h"

namespace brim::rows {
namespace {

bool is_series_file(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  if (name.starts_with('.')) return false;
  return row_format_of(name) != RowFormat::txt || io::without_compression(name).ends_with(".txt");
}

SeriesTable read_all(const std::vector<std::string>& files, int64_t total, const SeriesReaderOptions& options,
                     const std::function<std::unique_ptr<io::ByteSource>(size_t)>& open) {
  SeriesBuilder builder(options, files);
  CovariateBuilder covariates(options, files);
  std::string unused;
  std::vector<std::string> absent;
  SeriesLayout layout = SeriesLayout::automatic;
  int64_t before = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    const std::unique_ptr<io::ByteSource> source = open(i);
    SeriesFileReader reader(*source, static_cast<uint32_t>(i), files.size(), options, builder, covariates);
    const SeriesLayout own = reader.read([&] {
      if (options.stop != nullptr && *options.stop)
        fail(ErrorCode::interrupted, "interrupted while reading {}", files[i]);
      if (options.progress) options.progress(before + source->position(), total);
    });
    if (i > 0 && own != layout)
      fail(ErrorCode::bad_data, Remedy{"give files of one layout"}, "{}: line 1: the layout is {}, but {} has {}",
           files[i], layout_name(own), files[0], layout_name(layout));
    layout = own;
    if (i == 0) unused = reader.unused_columns();
    if (std::string columns = reader.absent_columns(); !columns.empty()) absent.push_back(std::move(columns));
    before += source->position();
  }
  SeriesTable table = builder.finish(layout);
  if (!unused.empty()) table.notes.push_back(unused);
  if (!absent.empty())
    table.notes.push_back(absent[0] + (absent.size() > 1 ? fmt::format(" ({} such files)", absent.size()) : ""));
  covariates.finish(table);
  return table;
}

}  // namespace

std::optional<double> parse_series_value(std::string_view text) {
  text = bare_field(text);
  const double absent = std::numeric_limits<double>::quiet_NaN();
  if (text.empty()) return absent;
  const std::string_view digits = text.starts_with('+') ? text.substr(1) : text;
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error == std::errc() && end == digits.data() + digits.size()) return value;
  if (error == std::errc::result_out_of_range && end == digits.data() + digits.size())
    return std::abs(value) < 1 ? 0.0 : std::numeric_limits<double>::infinity();
  for (const char* word : {"na", "n/a", "#n/a", "null", "none", "<na>"})
    if (same_word(text, word)) return absent;
  return std::nullopt;
}

std::vector<std::string> series_files(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code ignored;
    if (!std::filesystem::is_directory(path, ignored)) {
      files.push_back(path);
      continue;
    }
    std::vector<std::string> inside;
    for (const auto& entry : std::filesystem::directory_iterator(path))
      if (entry.is_regular_file() && is_series_file(entry.path())) inside.push_back(entry.path().string());
    if (inside.empty())
      fail(ErrorCode::bad_data, Remedy{"give a folder with csv, tsv or jsonl files, optionally .gz or .zst"},
           "{}: contains no files of series", path);
    std::sort(inside.begin(), inside.end());
    files.insert(files.end(), inside.begin(), inside.end());
  }
  return files;
}

SeriesTable read_series(const std::vector<std::string>& paths, const SeriesReaderOptions& options) {
  if (paths.empty()) fail(ErrorCode::usage, Remedy{"set `data=FILE`"}, "no input series");
  const std::vector<std::string> files = series_files(paths);
  int64_t total = 0;
  for (const std::string& file : files) {
    if (file.ends_with(".parquet"))
      fail(ErrorCode::bad_data,
           Remedy{fmt::format("convert it: python -c \"import pandas; pandas.read_parquet('{}').to_csv('{}.csv', "
                              "index=False)\"",
                              file, std::filesystem::path(file).stem().string())},
           "{}: Parquet is not supported", file);
    std::error_code unknown;
    const auto bytes = std::filesystem::file_size(file, unknown);
    if (!unknown) total += static_cast<int64_t>(bytes);
  }
  return read_all(files, total, options, [&](size_t i) { return io::open_source(files[i]); });
}

SeriesTable read_series(std::unique_ptr<io::ByteSource> source, const SeriesReaderOptions& options) {
  const std::vector<std::string> files = {source->name()};
  const int64_t total = source->size();
  return read_all(files, total, options, [&](size_t) { return std::move(source); });
}

}  // namespace brim::rows
