// SPDX-License-Identifier: Apache-2.0
// A chunk of rows: per row the text, the record's original bytes (so that its other columns can be written out
// unchanged), its line, and an error if the row is bad. A chunk owns its storage and may be moved to other threads.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "io/compress.h"

namespace brim::rows {

// A position between two rows. Store it and pass it to RowReader::seek to continue there.
struct RowPosition {
  size_t input = 0;         // index of the input
  int64_t rows = 0;         // rows before it, over all inputs
  int64_t offset = 0;       // bytes before it in this input, decompressed
  int64_t lines = 0;        // line ends before it in this input
  int64_t blank_lines = 0;  // skipped before it, over all inputs
};

struct RowError {
  size_t row;  // index in the chunk
  Error error;
};

class RowChunk;
// Prepends the position to the message of a row's `error`. Errors thrown by the reader already contain it.
Error placed_error(const std::vector<std::string>& inputs, const RowChunk& chunk, size_t row, const Error& error);

// One chunk of rows from a single input. Views stay valid for the lifetime of the chunk, including after a move.
class RowChunk {
 public:
  RowChunk() = default;
  RowChunk(RowChunk&&) = default;
  RowChunk& operator=(RowChunk&&) = default;
  RowChunk(const RowChunk&) = delete;
  RowChunk& operator=(const RowChunk&) = delete;

  size_t size() const { return texts.size(); }
  const Error* error(size_t row) const;          // null for a good row
  RowPosition position_after(size_t row) const;  // start of the next row
  void keep_first(size_t rows);                  // drops later rows; at least one stays
  // Bytes of the files (compressed size if compressed) up to the end of the chunk, including all previous inputs.
  int64_t file_bytes() const { return file_bytes_; }

  size_t input = 0;
  int64_t first_row = 0;                // index of row 0 of this chunk over all inputs, from 0
  std::vector<std::string_view> texts;  // empty for a bad row
  std::vector<std::string_view> pairs;  // second texts if a pair column is configured, else empty
  // The second text of a row, if it has one.
  std::optional<std::string_view> pair(size_t row) const {
    return pairs.empty() ? std::nullopt : std::optional(pairs[row]);
  }
  std::vector<std::string_view> records;  // original bytes without the line end
  std::vector<std::string_view> labels;   // per row, one per label column
  std::vector<int64_t> lines;             // first line of each record, from 1
  std::vector<RowError> errors;           // in row order

 private:
  friend class RowReader;
  void clear();
  std::string_view keep(std::string_view text);  // stores a text that had to be decoded

  // Blank lines before row `row`, over all inputs. Only rows that follow a blank line have an entry.
  struct BlankLines {
    size_t row;
    int64_t total;
  };
  void add_blank_line(int64_t total);

  std::unique_ptr<char[]> buffer_;
  size_t capacity_ = 0;
  int64_t first_blank_lines_ = 0;  // before row 0
  std::vector<BlankLines> blank_lines_;
  int64_t base_offset_ = 0;                 // offset of buffer_[0] in the input
  int64_t end_offset_ = 0, end_lines_ = 0;  // after the last row
  int64_t file_bytes_ = 0;
  std::vector<std::unique_ptr<char[]>> decoded_;
  size_t decoded_left_ = 0;
};

// Interface for sources of row chunks: files, or texts in memory.
class RowSource {
 public:
  virtual ~RowSource() = default;
  // Returns false at the end.
  virtual bool next_chunk(RowChunk& chunk) = 0;
  // Ends chunks after about this many bytes, for callers that cannot wait for a whole block of rows. Call before the
  // first next_chunk.
  virtual void limit_chunks(size_t bytes) = 0;
  virtual size_t chunk_bytes() const = 0;
  virtual void wait_by(io::InputWait) {}  // sets how next_chunk waits for pipes
};

}  // namespace brim::rows
