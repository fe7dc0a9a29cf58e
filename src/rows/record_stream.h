// SPDX-License-Identifier: Apache-2.0
// Reads csv records or lines of a stream block by block, for files of series.
#pragma once
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/units.h"
#include "io/compress.h"
#include "rows/csv.h"
#include "rows/file_checks.h"

namespace brim::rows {

// Reads records or lines of one source, block by block.
class RecordStream {
 public:
  static constexpr size_t kMostRecordBytes = size_t{1} << 30;  // a wide row or an object holds a whole series

  RecordStream(io::ByteSource& source, size_t block_bytes) : source_(source), block_(block_bytes) {
    while (!ended_ && used_ < kHeadBytes && text().find('\n') == std::string_view::npos) more();
    if (const std::string why = why_not_text(first_line()); !why.empty())
      fail(ErrorCode::bad_data, "{}: {}", source_.name(), why);
    if (text().starts_with("\xEF\xBB\xBF")) at_ = 3;
  }

  // Truncated if the line is long.
  std::string_view first_line() const {
    const std::string_view rest = text().substr(at_, kHeadBytes);
    return rest.substr(0, rest.find('\n'));
  }

  // Returns false at the end. Skips blank lines.
  bool next(const CsvDialect& dialect, CsvRecord& record) {
    for (;;) {
      if (at_ == used_ && ended_) return false;
      parse_csv_record(text(), at_, ended_, dialect, record);
      if (record.status == CsvStatus::incomplete) {
        more();
        continue;
      }
      line_ = lines_ + 1;
      at_ = record.next;
      lines_ += record.lines;
      if (record.status == CsvStatus::blank) continue;
      if (record.status != CsvStatus::record)
        fail(ErrorCode::bad_data, Remedy{"close the quote; double quotes inside a quoted field"},
             "{}: line {}: field {} has an unterminated or misplaced quote", source_.name(), line_,
             record.error_field + 1);
      return true;
    }
  }

  bool next_line(std::string_view& line) {
    for (;;) {
      const size_t end = text().find('\n', at_);
      if (end == std::string_view::npos && !ended_) {
        more();
        continue;
      }
      if (at_ == used_) return false;
      line = text().substr(at_, end == std::string_view::npos ? end : end - at_);
      at_ = end == std::string_view::npos ? used_ : end + 1;
      line_ = ++lines_;
      if (line.find_first_not_of(" \t\r") != std::string_view::npos) return true;
    }
  }

  int64_t line() const { return line_; }  // first line of the last record
  bool block_is_new() { return std::exchange(new_, false); }

 private:
  std::string_view text() const { return {block_.data(), used_}; }

  void more() {
    if (at_ > 0) {
      std::memmove(block_.data(), block_.data() + at_, used_ - at_);
      used_ -= at_;
      at_ = 0;
    }
    if (used_ == block_.size()) {
      if (used_ >= kMostRecordBytes)
        fail(ErrorCode::bad_data, "{}: line {}: the record is longer than {}; is this a file of series?",
             source_.name(), lines_ + 1, format_bytes(static_cast<int64_t>(kMostRecordBytes)));
      block_.resize(block_.size() * 2);
    }
    fill();
  }

  void fill() {
    const size_t n = source_.read(block_.data() + used_, block_.size() - used_);
    used_ += n;
    ended_ = n == 0;
    new_ = true;
  }

  io::ByteSource& source_;
  std::vector<char> block_;
  size_t at_ = 0, used_ = 0;
  int64_t lines_ = 0, line_ = 0;
  bool ended_ = false, new_ = false;
};

}  // namespace brim::rows
