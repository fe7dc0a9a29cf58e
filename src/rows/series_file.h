// SPDX-License-Identifier: Apache-2.0
// Reads the series of one file of csv, tsv or jsonl, in any layout, into the builders. The layouts of csv and tsv are
// in series_file.cc, JSON objects in series_objects.cc.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/compress.h"
#include "rows/covariate_builder.h"
#include "rows/csv.h"
#include "rows/jsonl.h"
#include "rows/record_stream.h"
#include "rows/series_builder.h"
#include "rows/series_reader.h"

namespace brim::rows {

// Without blanks at both ends.
inline std::string_view bare_field(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r')) text.remove_suffix(1);
  return text;
}

class SeriesFileReader {
 public:
  SeriesFileReader(io::ByteSource& source, uint32_t file, size_t files, const SeriesReaderOptions& options,
                   SeriesBuilder& builder, CovariateBuilder& covariates)
      : source_(source),
        file_(file),
        files_(files),
        options_(options),
        builder_(builder),
        covariates_(covariates),
        stream_(source, std::max<size_t>(options.block_bytes, 16)) {}

  SeriesLayout read(const std::function<void()>& after_block);
  // A note on the columns of the header that are read neither as target nor as covariate; empty if all are used.
  std::string unused_columns() const;
  // A note on covariates that a file with values lacks; empty if there are none.
  std::string absent_columns() const;

 private:
  static constexpr size_t kAbsent = SIZE_MAX;
  [[noreturn]] void refuse(const std::string& what, const std::string& remedy = "") const;
  [[noreturn]] void refuse_empty() const;
  bool next();
  void choose_delimiter(std::string_view path);  // skips Excel's line "sep=;"
  void take_fields(std::vector<std::string>& into);
  // Whether the first record names columns. "id,1,2,3" does; "H1,605,586" and "0.78,1.61" do not.
  bool has_header() const;
  std::optional<size_t> column_of(const std::string& wanted, std::span<const std::string_view> usual,
                                  const char* setting) const;
  // Detects the layout from the header and the first row.
  void detect_layout(bool header);
  void find_columns();  // id, time and target
  // With covariates, a further file may lack the target: its rows follow the ends of the series.
  void find_target();
  void find_covariates();
  bool is_covariate(size_t column) const;
  bool is_omitted(size_t column) const;
  double covariate_value(size_t c, std::string_view text);
  SeriesLayout detected_layout(bool header) const;
  // V1, V2, …, the names that R gives to unnamed columns.
  bool counts_columns() const;
  void choose_target();
  std::string column_name(size_t column) const;
  double value_of(std::string_view text, size_t column) const;
  double present_value_of(std::string_view text, size_t column) const;
  [[noreturn]] void refuse_absent(size_t column) const;
  Timestamp time_of(std::string_view text) const;
  void check_width(size_t columns) const;
  std::string stem() const;
  void read_long();
  void read_wide();
  void read_columns();
  const JsonMember* member(std::string_view key) const;
  bool next_object();
  SeriesLayout read_json();
  std::string text_of(const JsonMember& m) const;
  void read_objects();
  // Lists beside the target, or single values of static columns.
  void read_object_covariates(uint32_t series, const Timestamp* first, size_t points);
  std::vector<float> covariate_list(size_t c, std::string_view list, size_t points);
  void declare_frequency();
  // The list's grammar has been validated, its elements have not.
  void read_targets(std::string_view list, uint32_t series, std::vector<float>& values);
  void read_rows_of_json();

  io::ByteSource& source_;
  uint32_t file_;
  size_t files_;
  const SeriesReaderOptions& options_;
  SeriesBuilder& builder_;
  CovariateBuilder& covariates_;
  std::vector<size_t> covariate_at_;  // column of each covariate, or kAbsent
  std::vector<double> covariate_row_;
  RecordStream stream_;
  std::function<void()> after_block_;
  CsvDialect dialect_;
  CsvRecord record_;
  std::vector<JsonMember> members_;
  std::vector<std::string> fields_, names_;  // fields of the first row; names from the header
  int64_t header_line_ = 0;
  std::optional<size_t> id_, time_, target_;
  SeriesLayout layout_ = SeriesLayout::automatic;
  mutable std::string scratch_;
};

}  // namespace brim::rows
