// SPDX-License-Identifier: Apache-2.0
// Rows out of txt, csv, tsv and jsonl files, one input after another, in chunks of some thousand: per row the text, the
// record's original bytes (so that its other columns can be written out untouched), its line, and an error if the row
// is bad. A chunk owns its storage and may travel to other threads; the reader keeps one block and the started record
// only, so memory stays flat whatever the file's size.
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

namespace brim::rows {

enum class RowFormat { automatic, txt, csv, tsv, jsonl };
const char* row_format_name(RowFormat format);
RowFormat parse_row_format(std::string_view name);  // "auto", "txt", …; Error(usage) otherwise
// By the name without .gz/.zst: .csv, .tsv (.tab), .jsonl (.ndjson, .json); all else, stdin included, is txt.
RowFormat row_format_of(std::string_view path);

// What separates columns, as a flag or a key gives it: one character that is no letter, digit or quote, or `tab`.
std::optional<char> parse_delimiter(std::string_view text);

// Bytes of an input, whole records; those before the first record (a header) may be in it or not.
struct ByteRange {
  int64_t begin = 0;
  int64_t end = -1;  // negative: to the end of the input
  bool is_empty() const { return end >= 0 && end <= begin; }
};

struct RowReaderOptions {
  RowFormat format = RowFormat::automatic;
  std::string text_column;  // empty: `text`, else the only column, else Error(usage) that names the columns
  std::string pair_column;  // of a second text that belongs to the first; empty: there is none
  std::vector<std::string> label_columns;  // empty: no labels are read
  bool labels_optional = false;            // an input of texts alone has none, and a row may lack its own
  char delimiter = 0;                      // csv and tsv; 0: the format's own
  bool quotes = true;                      // csv and tsv; false takes a quote as an ordinary character
  std::vector<ByteRange> ranges;           // what to read of each input; empty: all of them
  size_t chunk_bytes = size_t{512} << 10;
  size_t chunk_rows = 8192;
  size_t max_record_bytes = size_t{64} << 20;
};

// What is known once the first input is open; the writer needs it to keep the original columns.
struct RowSchema {
  RowFormat format = RowFormat::txt;
  // csv, tsv: the header. jsonl: the keys seen in the first block, in order of appearance. txt: "text".
  std::vector<std::string> columns;
  std::string header;            // csv, tsv: the header's bytes, without BOM and line end
  bool byte_order_mark = false;  // the first input began with U+FEFF
  CsvDialect dialect;            // csv, tsv
  std::string text_column, pair_column;
  std::vector<std::string> label_columns;  // none where the input has texts alone
  size_t text_index = 0, pair_index = 0;   // csv, tsv
  std::vector<size_t> label_indices;       // csv, tsv
};

// A place between two rows. Storing it and calling RowReader::seek continues there.
struct RowPosition {
  size_t input = 0;    // which of the inputs
  int64_t rows = 0;    // rows before it, over all inputs
  int64_t offset = 0;  // bytes before it in this input, decompressed
  int64_t lines = 0;   // line ends before it in this input
};

struct RowError {
  size_t row;  // in the chunk
  Error error;
};

class RowChunk;
// `error` of a row, with its place in front of what it says. The reader's own errors have it already.
Error placed_error(const std::vector<std::string>& inputs, const RowChunk& chunk, size_t row, const Error& error);

// One chunk, all from one input. Views stay valid while the chunk lives (moving it keeps them valid).
class RowChunk {
 public:
  RowChunk() = default;
  RowChunk(RowChunk&&) = default;
  RowChunk& operator=(RowChunk&&) = default;
  RowChunk(const RowChunk&) = delete;
  RowChunk& operator=(const RowChunk&) = delete;

  size_t size() const { return texts.size(); }
  const Error* error(size_t row) const;          // null for a good row
  RowPosition position_after(size_t row) const;  // where the next row begins
  void keep_first(size_t rows);                  // drops the rows behind; at least one stays
  // Bytes of the files (compressed ones where compressed) up to the end of the chunk, all inputs before it included.
  int64_t file_bytes() const { return file_bytes_; }

  size_t input = 0;
  int64_t first_row = 0;                // number of row 0 of this chunk, from 0, over all inputs
  std::vector<std::string_view> texts;  // empty for a bad row
  std::vector<std::string_view> pairs;  // the second texts where a column is named, else none
  // The second text of a row, if it has one.
  std::optional<std::string_view> pair(size_t row) const {
    return pairs.empty() ? std::nullopt : std::optional(pairs[row]);
  }
  std::vector<std::string_view> records;  // original bytes without the line end
  std::vector<std::string_view> labels;   // of each row, one a label column
  std::vector<int64_t> lines;             // line each record begins on, from 1
  std::vector<RowError> errors;           // by row

 private:
  friend class RowReader;
  void clear();
  std::string_view keep(std::string_view text);  // storage for a text that had to be decoded

  std::unique_ptr<char[]> buffer_;
  size_t capacity_ = 0;
  int64_t base_offset_ = 0;                 // of buffer_[0] in the input
  int64_t end_offset_ = 0, end_lines_ = 0;  // after the last row
  int64_t file_bytes_ = 0;
  std::vector<std::unique_ptr<char[]>> decoded_;
  size_t decoded_left_ = 0;
};

// Whatever gives rows in chunks: files, or texts in memory.
class RowSource {
 public:
  virtual ~RowSource() = default;
  // False at the end.
  virtual bool next_chunk(RowChunk& chunk) = 0;
  // Chunks end after about so many bytes, for those who would wait long for a whole block of rows. Before the first
  // next_chunk.
  virtual void limit_chunks(size_t bytes) = 0;
  virtual size_t chunk_bytes() const = 0;
  virtual void wait_by(io::InputWait) {}  // how next_chunk waits for pipes from here on
};

class RowReader : public RowSource {
 public:
  // Opens all inputs ("-" is stdin) far enough to know that they exist and that their headers agree.
  RowReader(std::vector<std::string> paths, RowReaderOptions options);
  // One stream that is already open (tests, sockets). `format` must be given.
  RowReader(std::unique_ptr<io::ByteSource> source, RowReaderOptions options);

  const RowSchema& schema() const { return schema_; }
  // As messages call them; where an input is not read from its start, its lines count from there.
  const std::vector<std::string>& inputs() const { return names_; }

  // False at the end of the last input. Throws bad_data for what is not one row's fault (a broken stream, UTF-16, a
  // line longer than max_record_bytes); rows before that place have been delivered.
  bool next_chunk(RowChunk& chunk) override;

  // Goes on at a place that position_after gave in an earlier run over the same inputs. Before the first next_chunk.
  void seek(const RowPosition& position);

  void limit_chunks(size_t bytes) override {
    most_bytes_ = std::max<size_t>(1, bytes);
    options_.chunk_bytes = std::min(options_.chunk_bytes, most_bytes_);
  }
  size_t chunk_bytes() const override { return options_.chunk_bytes; }
  void wait_by(io::InputWait wait) override { *wait_ = std::move(wait); }

  // Empty lines of csv, tsv and jsonl inputs read so far; they are not rows.
  int64_t blank_lines() const { return blank_lines_; }

  // Of all inputs' files, to set RowChunk::file_bytes against; -1 where unknown.
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
  void check_same_header();
  void learn_columns();
  void learn_json_keys();
  void choose_columns();
  void choose_dialect();
  void refuse_other_separator() const;
  void refuse_tagged_words() const;
  void refuse_bare_cr(std::string_view line) const;
  void note_structured_stdin() const;
  size_t column_index(const std::string& name, const char* setting) const;

  void parse_txt(RowChunk& chunk);
  void parse_csv(RowChunk& chunk);
  void parse_jsonl(RowChunk& chunk);
  void take_csv_row(RowChunk& chunk);
  void take_json_row(RowChunk& chunk, std::string_view line);
  bool take_line(std::string_view& line);
  bool full(const RowChunk& chunk) const { return chunk.size() >= options_.chunk_rows || at_ >= chunk_end_; }
  void add_row(RowChunk& chunk, std::string_view record, std::string_view text, std::string_view pair,
               std::span<const std::string_view> labels);  // a bad one where the record is no UTF-8
  void push_row(RowChunk& chunk, std::string_view record, std::string_view text, std::string_view pair,
                std::span<const std::string_view> labels);
  void add_bad_row(RowChunk& chunk, std::string_view record, std::string problem);
  void hand_over(RowChunk& chunk);
  std::string_view csv_text(RowChunk& chunk, const CsvField& field);

  std::vector<std::string> paths_, names_;
  RowReaderOptions options_;
  RowSchema schema_;
  std::shared_ptr<io::InputWait> wait_ = std::make_shared<io::InputWait>();  // the sources' too
  std::unique_ptr<io::ByteSource> source_;
  size_t input_ = 0;
  bool ended_ = false;         // the current source gives no more bytes
  std::exception_ptr broken_;  // it broke; thrown once the rows before that are delivered
  bool rows_waiting_ = false;  // the block may hold whole rows: parse before waiting for a pipe

  // What was read and not yet delivered is block_[at_ … used_).
  std::unique_ptr<char[]> block_;
  size_t capacity_ = 0, used_ = 0, at_ = 0;
  int64_t block_offset_ = 0;  // of block_[0] in the input
  int64_t lines_ = 0;         // line ends before at_
  int64_t rows_ = 0;          // rows before at_, over all inputs
  int64_t blank_lines_ = 0;
  int64_t bytes_before_ = 0, bytes_total_ = -1;
  size_t most_bytes_ = SIZE_MAX / 2;
  size_t chunk_end_ = 0;  // in block_: the chunk being parsed takes no row from here on

  CsvRecord csv_;
  std::vector<JsonMember> members_;
  std::vector<std::string_view> labels_;  // of the row at hand
  std::string scratch_;
};

}  // namespace brim::rows
