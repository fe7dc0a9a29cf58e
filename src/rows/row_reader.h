// SPDX-License-Identifier: Apache-2.0
// Reads rows from txt, csv, tsv and jsonl files, one input after another, in chunks of some thousand rows. Keeps only
// one block and the current record, so memory use does not depend on the file size.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "io/compress.h"
#include "rows/csv.h"
#include "rows/jsonl.h"
#include "rows/row_chunk.h"

namespace brim::rows {

enum class RowFormat { automatic, txt, csv, tsv, jsonl };
const char* row_format_name(RowFormat format);
RowFormat parse_row_format(std::string_view name);  // "auto", "txt", …; throws Error(usage) otherwise
// Format by file name without .gz/.zst: .csv, .tsv (.tab), .jsonl (.ndjson, .json); everything else, including stdin,
// is txt.
RowFormat row_format_of(std::string_view path);

// Parses a column delimiter option: one character other than a letter, digit or quote, or `tab`.
std::optional<char> parse_delimiter(std::string_view text);

// A byte range of an input that covers complete records; bytes before the first record (a header) may be included or
// not.
struct ByteRange {
  int64_t begin = 0;
  int64_t end = -1;  // negative: to the end of the input
  bool is_empty() const { return end >= 0 && end <= begin; }
};

struct RowReaderOptions {
  RowFormat format = RowFormat::automatic;
  std::string text_column;                 // empty: `text`, else the only column, else Error(usage) listing the columns
  std::string pair_column;                 // column of the second text of a pair; empty if there is none
  std::vector<std::string> label_columns;  // empty: no labels are read
  bool labels_optional = false;            // inputs without label columns and rows without labels are accepted
  char delimiter = 0;                      // csv and tsv; 0: default of the format
  bool quotes = true;                      // csv and tsv; if false, a quote is an ordinary character
  std::vector<ByteRange> ranges;           // range to read per input; empty: everything
  size_t chunk_bytes = size_t{512} << 10;
  size_t chunk_rows = 8192;
  size_t max_record_bytes = size_t{64} << 20;
};

// Properties known once the first input is open; the writer needs them to keep the original columns.
struct RowSchema {
  RowFormat format = RowFormat::txt;
  // csv, tsv: the header. jsonl: the keys seen in the first block, in order of appearance. txt: "text".
  std::vector<std::string> columns;
  std::string header;            // csv, tsv: the header's bytes, without BOM and line end
  bool byte_order_mark = false;  // the first input starts with U+FEFF
  CsvDialect dialect;            // csv, tsv
  std::string text_column, pair_column;
  std::vector<std::string> label_columns;  // empty if the input has only texts
  size_t text_index = 0, pair_index = 0;   // csv, tsv
  std::vector<size_t> label_indices;       // csv, tsv
};

class RowReader : public RowSource {
 public:
  // Opens all inputs ("-" is stdin) far enough to check that they exist and that their headers agree.
  RowReader(std::vector<std::string> paths, RowReaderOptions options);
  // Reads one stream that is already open (tests, sockets). `format` must be given.
  RowReader(std::unique_ptr<io::ByteSource> source, RowReaderOptions options);

  const RowSchema& schema() const { return schema_; }
  // Input names for messages; if an input is not read from its start, its lines count from the start of the range.
  const std::vector<std::string>& inputs() const { return names_; }

  // Returns false at the end of the last input. Throws bad_data for errors that are not limited to one row (a broken
  // stream, UTF-16, a line longer than max_record_bytes); rows before the error have been delivered.
  bool next_chunk(RowChunk& chunk) override;

  // Continues at a position that position_after returned in an earlier run over the same inputs. Call before the first
  // next_chunk.
  void seek(const RowPosition& position);

  void limit_chunks(size_t bytes) override {
    most_bytes_ = std::max<size_t>(1, bytes);
    options_.chunk_bytes = std::min(options_.chunk_bytes, most_bytes_);
  }
  size_t chunk_bytes() const override { return options_.chunk_bytes; }
  void wait_by(io::InputWait wait) override { *wait_ = std::move(wait); }

  // Empty lines of csv, tsv and jsonl inputs read so far, including those before the position of seek(); they are not
  // rows.
  int64_t blank_lines() const { return blank_lines_; }

  // Total size of all input files, comparable to RowChunk::file_bytes; -1 if unknown.
  int64_t bytes_total() const { return bytes_total_; }

 private:
  void open_input(size_t index, bool check_header);
  void keep_range(size_t index);
  void go_to(size_t index, int64_t offset);
  ByteRange range(size_t index) const { return options_.ranges.empty() ? ByteRange() : options_.ranges[index]; }
  void start_source();
  void fill();
  void make_room();
  bool last() const { return ended_ && !broken_; }
  std::string_view block() const { return {block_.get(), used_}; }

  CsvRecord read_header();
  bool is_separator_line(std::string_view line);
  void check_same_header();
  void detect_columns();
  void detect_json_keys();
  void choose_columns();
  void choose_dialect();
  void refuse_other_separator() const;
  void refuse_tagged_words() const;
  void refuse_bare_cr(std::string_view line) const;
  void warn_about_structured_stdin() const;
  size_t column_index(const std::string& name, const char* setting) const;

  void parse_txt(RowChunk& chunk);
  void parse_csv(RowChunk& chunk);
  void parse_jsonl(RowChunk& chunk);
  void take_csv_row(RowChunk& chunk);
  void take_json_row(RowChunk& chunk, std::string_view line);
  bool take_line(std::string_view& line);
  bool full(const RowChunk& chunk) const { return chunk.size() >= options_.chunk_rows || at_ >= chunk_end_; }
  void add_row(RowChunk& chunk, std::string_view record, std::string_view text, std::string_view pair,
               std::span<const std::string_view> labels);  // a bad row if the record is not UTF-8
  void push_row(RowChunk& chunk, std::string_view record, std::string_view text, std::string_view pair,
                std::span<const std::string_view> labels);
  void add_bad_row(RowChunk& chunk, std::string_view record, std::string problem);
  void hand_over(RowChunk& chunk);
  std::string_view csv_text(RowChunk& chunk, const CsvField& field);

  std::vector<std::string> paths_, names_;
  RowReaderOptions options_;
  RowSchema schema_;
  std::shared_ptr<io::InputWait> wait_ = std::make_shared<io::InputWait>();  // shared with the sources
  std::unique_ptr<io::ByteSource> source_;
  size_t input_ = 0;
  bool ended_ = false;         // the current source is exhausted
  std::exception_ptr broken_;  // error of the source, thrown once the rows before it are delivered
  bool rows_waiting_ = false;  // the block may hold complete rows: parse before waiting for a pipe

  // Bytes read but not yet delivered are block_[at_ … used_).
  std::unique_ptr<char[]> block_;
  size_t capacity_ = 0, used_ = 0, at_ = 0;
  int64_t block_offset_ = 0;  // offset of block_[0] in the input
  int64_t lines_ = 0;         // line ends before at_
  int64_t rows_ = 0;          // rows before at_, over all inputs
  int64_t blank_lines_ = 0;
  int64_t bytes_before_ = 0, bytes_total_ = -1;
  size_t most_bytes_ = SIZE_MAX / 2;
  size_t chunk_end_ = 0;  // offset in block_: rows from here on belong to the next chunk

  CsvRecord csv_;
  std::vector<JsonMember> members_;
  std::vector<std::string_view> labels_;  // labels of the current row
  std::string scratch_;
};

}  // namespace brim::rows
