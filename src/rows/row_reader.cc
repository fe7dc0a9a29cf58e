// SPDX-License-Identifier: Apache-2.0
#include "rows/row_reader.h"

#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/units.h"
#include "rows/file_checks.h"

namespace brim::rows {
namespace {

constexpr size_t kDecodedBlock = size_t{64} << 10;

bool ends_with(std::string_view text, std::string_view suffix) {
  return text.size() >= suffix.size() && text.substr(text.size() - suffix.size()) == suffix;
}

// Total size of all inputs, or of their ranges; -1 if one is a pipe.
int64_t total_size(const std::vector<std::string>& paths, const std::vector<ByteRange>& ranges = {}) {
  int64_t total = 0;
  for (const std::string& path : paths) {
    struct stat info {};
    if ((path == "-" ? ::fstat(0, &info) : ::stat(path.c_str(), &info)) != 0 || !S_ISREG(info.st_mode)) return -1;
    if (const size_t i = static_cast<size_t>(&path - paths.data()); i < ranges.size() && ranges[i].end >= 0)
      total += ranges[i].end - ranges[i].begin;
    else
      total += info.st_size;
  }
  return total;
}

void refuse_other_encoding(const std::string& path) {
  const std::string head = io::read_head(path, kHeadBytes);
  if (!why_not_text(head).empty()) return;  // opening it reports the problem
  if (const std::string why = why_other_encoding(head); !why.empty()) fail(ErrorCode::bad_data, "{}: {}", path, why);
  if (const std::string why = why_bare_cr(head); !why.empty()) fail(ErrorCode::bad_data, "{}: {}", path, why);
}

RowFormat common_format(const std::vector<std::string>& paths) {
  const RowFormat format = row_format_of(paths[0]);
  for (const std::string& path : paths)
    if (row_format_of(path) != format)
      fail(ErrorCode::usage, Remedy{"set `format` or use separate runs"},
           "{} is {} but {} is {}; all inputs of a run must have the same format", paths[0], row_format_name(format),
           path, row_format_name(row_format_of(path)));
  return format;
}

}  // namespace

const char* row_format_name(RowFormat format) {
  switch (format) {
    case RowFormat::automatic:
      return "auto";
    case RowFormat::txt:
      return "txt";
    case RowFormat::csv:
      return "csv";
    case RowFormat::tsv:
      return "tsv";
    case RowFormat::jsonl:
      return "jsonl";
  }
  return "auto";
}

RowFormat parse_row_format(std::string_view name) {
  for (RowFormat format : {RowFormat::automatic, RowFormat::txt, RowFormat::csv, RowFormat::tsv, RowFormat::jsonl})
    if (name == row_format_name(format)) return format;
  fail(ErrorCode::usage, "unknown `format={}`; use auto, txt, csv, tsv or jsonl", name);
}

RowFormat row_format_of(std::string_view path) {
  path = io::without_compression(path);
  if (ends_with(path, ".csv")) return RowFormat::csv;
  if (ends_with(path, ".tsv") || ends_with(path, ".tab")) return RowFormat::tsv;
  if (ends_with(path, ".jsonl") || ends_with(path, ".ndjson") || ends_with(path, ".json")) return RowFormat::jsonl;
  return RowFormat::txt;
}

std::optional<char> parse_delimiter(std::string_view text) {
  if (text == "tab" || text == "\\t") return '\t';
  if (text.size() != 1 || std::isalnum(static_cast<unsigned char>(text[0])) != 0 || text[0] == '"' || text[0] == '\n' ||
      text[0] == '\r')
    return std::nullopt;
  return text[0];
}

const Error* RowChunk::error(size_t row) const {
  if (errors.empty()) return nullptr;
  auto it = std::lower_bound(errors.begin(), errors.end(), row, [](const RowError& e, size_t r) { return e.row < r; });
  return it != errors.end() && it->row == row ? &it->error : nullptr;
}

Error placed_error(const std::vector<std::string>& inputs, const RowChunk& chunk, size_t row, const Error& error) {
  if (chunk.error(row) != nullptr) return error;
  return Error(error.code(), fmt::format("{}: line {}: {}", inputs[chunk.input], chunk.lines[row], error.what()));
}

RowPosition RowChunk::position_after(size_t row) const {
  BRIM_CHECK(row < size(), "row {} of {}", row, size());
  RowPosition after{input, first_row + static_cast<int64_t>(row) + 1, end_offset_, end_lines_};
  if (row + 1 < size()) {
    after.offset = base_offset_ + (records[row + 1].data() - buffer_.get());
    after.lines = lines[row + 1] - 1;
  }
  const auto later = std::upper_bound(blank_lines_.begin(), blank_lines_.end(), row + 1,
                                      [](size_t r, const BlankLines& blank) { return r < blank.row; });
  after.blank_lines = later == blank_lines_.begin() ? first_blank_lines_ : std::prev(later)->total;
  return after;
}

void RowChunk::keep_first(size_t rows) {
  BRIM_CHECK(rows > 0 && rows <= size(), "{} rows of {}", rows, size());
  if (buffer_) {
    const RowPosition end = position_after(rows - 1);
    end_offset_ = end.offset;
    end_lines_ = end.lines;
  }
  const size_t label_columns = labels.size() / size();
  labels.resize(rows * label_columns);
  texts.resize(rows);
  if (!pairs.empty()) pairs.resize(rows);
  records.resize(rows);
  lines.resize(rows);
  while (!errors.empty() && errors.back().row >= rows) errors.pop_back();
  while (!blank_lines_.empty() && blank_lines_.back().row > rows) blank_lines_.pop_back();
}

void RowChunk::add_blank_line(int64_t total) {
  if (blank_lines_.empty() || blank_lines_.back().row != size()) blank_lines_.push_back({size(), total});
  blank_lines_.back().total = total;
}

void RowChunk::clear() {
  texts.clear();
  pairs.clear();
  records.clear();
  labels.clear();
  lines.clear();
  errors.clear();
  blank_lines_.clear();
  decoded_.clear();
  decoded_left_ = 0;
}

std::string_view RowChunk::keep(std::string_view text) {
  if (text.empty()) return {};
  if (text.size() > decoded_left_) {
    decoded_left_ = std::max(text.size(), kDecodedBlock);
    decoded_.push_back(std::make_unique_for_overwrite<char[]>(decoded_left_));
    // Blocks are filled from the back, so the free space determines the position.
  }
  decoded_left_ -= text.size();
  char* place = decoded_.back().get() + decoded_left_;
  std::memcpy(place, text.data(), text.size());
  return {place, text.size()};
}

RowReader::RowReader(std::vector<std::string> paths, RowReaderOptions options)
    : paths_(std::move(paths)), options_(std::move(options)) {
  if (paths_.empty()) fail(ErrorCode::usage, "no input; give a file, or - for stdin");
  if (std::count(paths_.begin(), paths_.end(), "-") > 1)
    fail(ErrorCode::usage, "stdin (-) is given {} times; it can be read only once",
         std::count(paths_.begin(), paths_.end(), "-"));
  schema_.format = options_.format == RowFormat::automatic ? common_format(paths_) : options_.format;
  choose_dialect();
  for (const std::string& path : paths_)
    if (path != "-" && io::is_rereadable(path)) refuse_other_encoding(path);
  BRIM_CHECK(options_.ranges.empty() || options_.ranges.size() == paths_.size(), "{} ranges of {} inputs",
             options_.ranges.size(), paths_.size());
  bytes_total_ = total_size(paths_, options_.ranges);
  for (size_t i = 0; i < paths_.size(); ++i)
    names_.push_back(paths_[i] == "-"     ? "stdin"
                     : range(i).begin > 0 ? fmt::format("{} (from byte {})", paths_[i], range(i).begin)
                                          : paths_[i]);
  open_input(0, false);
  detect_columns();
  keep_range(0);
  rows_waiting_ = true;
  if (paths_.size() == 1) return;
  // Fail early rather than after hours: check that the other inputs exist and have the same header.
  RowReaderOptions look = options_;
  look.format = schema_.format;
  look.ranges.clear();
  for (size_t i = 1; i < paths_.size(); ++i) {
    if (paths_[i] == "-") continue;
    std::error_code unseen;  // opening it reports the problem
    if (std::filesystem::exists(paths_[i], unseen) && !io::is_rereadable(paths_[i]))
      continue;  // a pipe: reading the header would consume its rows
    RowReader other(io::open_source(paths_[i]), look);
    if (!schema_.header.empty() && other.schema_.columns != schema_.columns)
      fail(ErrorCode::usage, "{}: its columns ({}) differ from those of {} ({}); score the files separately", paths_[i],
           some_names(other.schema_.columns), paths_[0], some_names(schema_.columns));
  }
}

RowReader::RowReader(std::unique_ptr<io::ByteSource> source, RowReaderOptions options)
    : paths_{source->name()}, names_(paths_), options_(std::move(options)), source_(std::move(source)) {
  BRIM_CHECK(options_.format != RowFormat::automatic, "the format of a stream cannot be detected from a file name");
  schema_.format = options_.format;
  choose_dialect();
  bytes_total_ = source_->size();
  start_source();
  detect_columns();
  rows_waiting_ = true;
}

void RowReader::open_input(size_t index, bool check_header) {
  input_ = index;
  source_ = open_source(paths_[index], wait_);
  start_source();
  if (!check_header) return;
  check_same_header();
  keep_range(index);
  rows_waiting_ = true;
}

// Restricts reading to the range, after the header has been read.
void RowReader::keep_range(size_t index) {
  const ByteRange wanted = range(index);
  if (wanted.begin == 0 && wanted.end < 0) return;
  const int64_t first = block_offset_ + static_cast<int64_t>(at_);
  if (wanted.begin > first) lines_ = 0;
  go_to(index, std::max(first, wanted.begin));
}

void RowReader::go_to(size_t index, int64_t offset) {
  const ByteRange wanted = range(index);
  source_ = open_source(paths_[index], wait_);
  if (wanted.end >= 0)
    source_ = io::range_of(std::move(source_), offset, std::max<int64_t>(0, wanted.end - offset));
  else
    source_->skip(offset);
  ended_ = rows_waiting_ = false;
  used_ = at_ = 0;
  block_offset_ = offset;
}

// Reads the first bytes, drops a byte order mark and rejects files that are not UTF-8 text.
void RowReader::start_source() {
  ended_ = rows_waiting_ = false;
  used_ = at_ = 0;
  block_offset_ = lines_ = 0;
  fill();
  while (!ended_ && is_start_of_magic(block())) {  // a pipe may deliver it byte by byte
    make_room();
    fill();
  }
  if (const std::string why = why_not_text(block()); !why.empty())
    fail(ErrorCode::bad_data, "{}: {}", source_->name(), why);
  if (block().starts_with("\xEF\xBB\xBF")) {
    at_ = 3;
    if (input_ == 0) schema_.byte_order_mark = true;
  }
}

// Reads until the block holds chunk_bytes, the source ends, or a pipe has no more data for now.
void RowReader::fill() {
  const size_t target = std::max(options_.chunk_bytes, capacity_);
  if (capacity_ < target) {
    auto wider = std::make_unique_for_overwrite<char[]>(target);
    if (used_ > 0) std::memcpy(wider.get(), block_.get(), used_);
    block_ = std::move(wider);
    capacity_ = target;
  }
  bool any = rows_waiting_;  // if rows are available, waiting for a pipe would delay them
  while (!ended_ && used_ < capacity_ && (!any || source_->ready())) {
    try {
      const size_t n = source_->read(block_.get() + used_, capacity_ - used_);
      used_ += n;
      ended_ = n == 0;
    } catch (const Error&) {
      broken_ = std::current_exception();
      ended_ = true;
    }
    any = true;
  }
}

// Called if the block is full and holds no complete record: drops delivered bytes, or doubles the block.
void RowReader::make_room() {
  if (at_ > 0) {
    std::memmove(block_.get(), block_.get() + at_, used_ - at_);
    block_offset_ += static_cast<int64_t>(at_);
    used_ -= at_;
    at_ = 0;
  }
  if (used_ < capacity_) return;
  const size_t wider_capacity = capacity_ * 2;
  auto wider = std::make_unique_for_overwrite<char[]>(wider_capacity);
  std::memcpy(wider.get(), block_.get(), used_);
  block_ = std::move(wider);
  capacity_ = wider_capacity;
}

bool RowReader::next_chunk(RowChunk& chunk) {
  for (;;) {
    if (source_ == nullptr) {
      if (input_ + 1 >= paths_.size()) return false;
      if (range(input_ + 1).is_empty()) {
        ++input_;
        continue;
      }
      open_input(input_ + 1, true);
    }
    fill();
    chunk.clear();
    chunk.input = input_;
    chunk.first_row = rows_;
    chunk.first_blank_lines_ = blank_lines_;
    rows_waiting_ = false;
    chunk_end_ = at_ + most_bytes_;
    switch (schema_.format) {
      case RowFormat::csv:
      case RowFormat::tsv:
        parse_csv(chunk);
        break;
      case RowFormat::jsonl:
        parse_jsonl(chunk);
        break;
      default:
        parse_txt(chunk);
    }
    if (chunk.size() > 0) {
      hand_over(chunk);
      return true;
    }
    if (ended_) {
      if (broken_) std::rethrow_exception(std::exchange(broken_, nullptr));
      bytes_before_ += source_->position();
      source_ = nullptr;
      continue;
    }
    if (used_ - at_ > options_.max_record_bytes)
      fail(ErrorCode::bad_data, "{}: line {}: the record is longer than {}; is this a text file?", source_->name(),
           lines_ + 1, format_bytes(static_cast<int64_t>(options_.max_record_bytes)));
    make_room();
  }
}

// The chunk takes over the block that its views point into; the remaining bytes move to the chunk's old buffer.
void RowReader::hand_over(RowChunk& chunk) {
  chunk.base_offset_ = block_offset_;
  chunk.end_offset_ = block_offset_ + static_cast<int64_t>(at_);
  chunk.end_lines_ = lines_;
  // The source is one block ahead; for compressed input, the block's share of the file is estimated by proportion.
  const double read = static_cast<double>(block_offset_) + static_cast<double>(used_);
  chunk.file_bytes_ = bytes_before_ + std::llround(static_cast<double>(source_->position()) *
                                                   static_cast<double>(chunk.end_offset_) / read);
  const size_t left = used_ - at_;
  const size_t wanted = std::max(left, options_.chunk_bytes);
  // A block that grew for one huge record is not kept for the rest of the file.
  if (chunk.capacity_ < wanted || chunk.capacity_ > 4 * wanted) {
    chunk.buffer_ = std::make_unique_for_overwrite<char[]>(wanted);
    chunk.capacity_ = wanted;
  }
  std::memcpy(chunk.buffer_.get(), block_.get() + at_, left);
  std::swap(chunk.buffer_, block_);
  std::swap(chunk.capacity_, capacity_);
  block_offset_ += static_cast<int64_t>(at_);
  at_ = 0;
  used_ = left;
}

void RowReader::seek(const RowPosition& position) {
  BRIM_CHECK(position.input < paths_.size(), "input {} of {}", position.input, paths_.size());
  BRIM_CHECK(rows_ == 0, "seek after {} rows", rows_);
  if (position.rows == 0) return;
  for (size_t i = 0; i < position.input; ++i) {
    const int64_t size = total_size({paths_[i]}, options_.ranges.empty() ? options_.ranges : std::vector{range(i)});
    bytes_before_ += std::max<int64_t>(size, 0);
  }
  input_ = position.input;
  go_to(input_, position.offset);
  lines_ = position.lines;
  rows_ = position.rows;
  blank_lines_ = position.blank_lines;
}

}  // namespace brim::rows
