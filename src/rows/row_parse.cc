// SPDX-License-Identifier: Apache-2.0
// The parsing half of RowReader: detects columns, selects text and label columns, and parses rows from the current
// block.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "base/units.h"
#include "base/utf8.h"
#include "rows/conll.h"
#include "rows/file_checks.h"
#include "rows/first_seen.h"
#include "rows/row_reader.h"

namespace brim::rows {
namespace {

bool is_delimited(RowFormat format) { return format == RowFormat::csv || format == RowFormat::tsv; }

const char* find_newline(const char* p, const char* end) {
  return static_cast<const char*>(std::memchr(p, '\n', static_cast<size_t>(end - p)));
}

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r") == std::string_view::npos; }

}  // namespace

void RowReader::choose_dialect() {
  if (!is_delimited(schema_.format) && (options_.delimiter != 0 || !options_.quotes))
    fail(ErrorCode::usage, Remedy{"set `format=csv`"},
         "{}: `delimiter` and `no_quotes` require csv or tsv, but the format is {}", paths_[0],
         row_format_name(schema_.format));
  schema_.dialect = {options_.delimiter != 0            ? options_.delimiter
                     : schema_.format == RowFormat::tsv ? '\t'
                                                        : ',',
                     options_.quotes};
}

void RowReader::check_same_header() {
  if (!is_delimited(schema_.format)) return;
  const CsvRecord header = read_header();
  if (header.raw == schema_.header) return;
  std::vector<std::string> columns;
  for (const CsvField& field : header.fields) columns.emplace_back(csv_value(field, scratch_));
  if (columns != schema_.columns)
    fail(ErrorCode::bad_data, "{}: line {}: its columns ({}) differ from those of {} ({})", source_->name(), lines_,
         some_names(columns), paths_[0], some_names(schema_.columns));
}

// Excel's "sep=;" before the header: sets the delimiter, unless an option has set it.
bool RowReader::is_separator_line(std::string_view line) {
  const std::optional<char> delimiter = lines_ == 1 ? excel_separator(line) : std::nullopt;
  if (delimiter && options_.delimiter == 0) schema_.dialect.delimiter = *delimiter;
  return delimiter.has_value();
}

CsvRecord RowReader::read_header() {
  CsvRecord header;
  for (;;) {
    parse_csv_record(block(), at_, last(), schema_.dialect, header);
    if (header.status == CsvStatus::incomplete) {
      if (broken_) std::rethrow_exception(std::exchange(broken_, nullptr));
      if (used_ - at_ > options_.max_record_bytes)
        fail(ErrorCode::bad_data, "{}: line {}: unterminated header; is this a {} file?", source_->name(), lines_ + 1,
             row_format_name(schema_.format));
      make_room();
      fill();
      continue;
    }
    if (header.status == CsvStatus::bad_quote || header.status == CsvStatus::open_quote)
      fail(ErrorCode::bad_data, "{}: line {}: column {} of the header has an unterminated or misplaced quote",
           source_->name(), lines_ + 1, header.error_field + 1);
    at_ = header.next;
    lines_ += header.lines;
    if (header.status == CsvStatus::record) {
      refuse_bare_cr(header.raw);
      if (is_separator_line(header.raw)) continue;
      return header;
    }
    if (at_ == used_ && last())
      fail(ErrorCode::bad_data, "{}: is empty; a {} file must start with a header line", source_->name(),
           row_format_name(schema_.format));
  }
}

void RowReader::detect_columns() {
  if (is_delimited(schema_.format)) {
    const CsvRecord header = read_header();
    if (const std::string why = why_not_utf8(header.raw); !why.empty())
      fail(ErrorCode::bad_data, "{}: line {}: {}", source_->name(), lines_, why);
    schema_.header = header.raw;
    for (const CsvField& field : header.fields) schema_.columns.emplace_back(csv_value(field, scratch_));
    choose_columns();
  } else if (schema_.format == RowFormat::jsonl) {
    detect_json_keys();
    refuse_tagged_words();
    choose_columns();
  } else {
    refuse_tagged_words();
    const bool wants_labels = !options_.label_columns.empty() && !options_.labels_optional;
    if (wants_labels || !options_.pair_column.empty())
      fail(ErrorCode::usage, "{}: {} has no column {}; {} require csv, tsv or jsonl{}", source_->name(),
           paths_[0] == "-" ? "txt input" : "a txt file",
           wants_labels ? options_.label_columns[0] : options_.pair_column, wants_labels ? "labels" : "pairs",
           options_.format == RowFormat::automatic ? " (set `format`)" : "");
    schema_.columns = {"text"};
    schema_.text_column = "text";
    warn_about_structured_stdin();
  }
}

// Collects the keys of all complete lines in the first block, or of at least one line.
void RowReader::detect_json_keys() {
  for (size_t seen = 0; !ended_ && used_ - at_ <= options_.max_record_bytes &&
                        find_newline(block_.get() + at_ + seen, block_.get() + used_) == nullptr;) {
    seen = used_ - at_;  // first line; incomplete so far
    make_room();
    fill();
  }
  const char* p = block_.get() + at_;
  const char* end = block_.get() + used_;
  while (p < end && is_blank({p, 1})) ++p;
  if (p < end && *p == '[')
    fail(ErrorCode::bad_data,
         "{}: line 1: expected one JSON object per line, found an array; convert it first: jq -c '.[]'",
         source_->name());
  if (p < end && *p == '{' && is_blank({p + 1, static_cast<size_t>(std::find(p, end, '\n') - p - 1)}) &&
      std::find(p, end, '\n') != end)
    fail(ErrorCode::bad_data,
         "{}: expected one JSON object per line, found an object over several lines; convert it first: jq -c .",
         source_->name());
  FirstSeen<> keys;
  while (p < end) {
    const char* newline = find_newline(p, end);
    if (newline == nullptr && !last()) break;
    const char* line_end = newline == nullptr ? end : newline;
    if (scan_json_object({p, static_cast<size_t>(line_end - p)}, members_).what == nullptr)
      for (const JsonMember& member : members_)
        keys.add(member.key_escaped ? json_unescape(member.key) : std::string(member.key));
    p = newline == nullptr ? end : newline + 1;
  }
  schema_.columns = keys.take();
}

size_t RowReader::column_index(const std::string& name, const char* setting) const {
  const auto& columns = schema_.columns;
  const auto it = std::find(columns.begin(), columns.end(), name);
  if (it == columns.end()) {
    if (schema_.format == RowFormat::jsonl && columns.empty()) return 0;  // no rows yet; columns are resolved later
    const std::string near = nearest_name(name, columns);
    fail(ErrorCode::usage, "{}: unknown column {}{}; columns: {}", source_->name(), name,
         near.empty() ? "" : " (did you mean " + near + "?)", some_names(columns));
  }
  if (std::find(it + 1, columns.end(), name) != columns.end())
    fail(ErrorCode::usage,
         "{}: column {} appears more than once in the header ({}); rename one or choose another with {}",
         source_->name(), name, some_names(columns), setting);
  return static_cast<size_t>(it - columns.begin());
}

// A sheet saved with semicolons (or with tabs under .csv) parses as one column, and whole records would be scored as
// texts.
void RowReader::refuse_other_separator() const {
  if (!is_delimited(schema_.format) || options_.delimiter != 0) return;
  const std::string& name = schema_.columns[0];
  for (const auto& [separator, called] :
       {std::pair(';', "semicolons"), std::pair('\t', "tabs"), std::pair('|', "bars"), std::pair(',', "commas")})
    if (name.find(separator) != std::string::npos && !schema_.header.starts_with('"'))
      fail(
          ErrorCode::usage,
          "{}: the header {} is a single column that contains {}; if they separate columns, {}, else set `text_column`",
          source_->name(), name, called,
          separator == '\t'  ? std::string("set `format=tsv`")
          : separator == ',' ? std::string("set `format=csv`")
                             : fmt::format("set `delimiter='{}'`", separator));
}

// Lines such as "London B-LOC" would be scored as texts of two words.
void RowReader::refuse_tagged_words() const {
  if (options_.format != RowFormat::automatic) return;
  const auto has = [&](const char* key) {
    return std::find(schema_.columns.begin(), schema_.columns.end(), key) != schema_.columns.end();
  };
  const bool jsonl = schema_.format == RowFormat::jsonl && options_.text_column.empty() && !has("text") &&
                     has("tokens") && has("ner_tags");
  const bool conll =
      schema_.format == RowFormat::txt && (has_conll_name(paths_[0]) || looks_like_conll(block().substr(at_)));
  if (jsonl || conll)
    fail(ErrorCode::usage,
         "{}: contains tagged words ({}), not texts; use `brim eval` to evaluate a token model on it or `brim train "
         "task=ner` to train on it; to score the sentences, write one per line{}",
         source_->name(), jsonl ? "\"tokens\" and \"ner_tags\"" : "CoNLL",
         jsonl ? ": jq -r '.tokens | join(\" \")'"
               : ": awk 'NF { printf \"%s \", $1; next } { print \"\" }' (`format=txt` scores each line as a text)");
}

// Piped rows are txt unless `format` is given: warn if the input is clearly a table or JSON.
void RowReader::warn_about_structured_stdin() const {
  if (paths_[0] != "-" || options_.format != RowFormat::automatic) return;
  const std::string_view line = block().substr(at_, block().find_first_of("\r\n", at_) - at_);
  std::vector<JsonMember> members;
  const char* looks = nullptr;
  if (line.starts_with('{') && scan_json_object(line, members).what == nullptr) looks = "jsonl";
  for (const auto& [separator, format] : {std::pair(',', "csv"), std::pair('\t', "tsv")}) {
    const std::string text = "text", around = separator + std::string(line) + separator;
    if (line.find(separator) != std::string_view::npos &&
        around.find(separator + text + separator) != std::string::npos)
      looks = format;
  }
  if (looks != nullptr)
    log_warning("stdin is read as one text per line but looks like {0}; set `format={0}` to parse it", looks);
}

void RowReader::choose_columns() {
  const auto& columns = schema_.columns;
  const bool has_text = std::find(columns.begin(), columns.end(), "text") != columns.end();
  std::string& text = schema_.text_column;
  if (!options_.text_column.empty()) {
    text = options_.text_column;
  } else if (has_text || columns.empty()) {
    text = "text";
  } else if (columns.size() == 1) {
    text = columns[0];
    refuse_other_separator();
  } else {
    fail(ErrorCode::usage, "{}: cannot tell which column holds the text; set `text_column` to one of: {}",
         source_->name(), some_names(columns));
  }
  schema_.text_index = column_index(text, "`text_column`");
  schema_.pair_column = options_.pair_column;
  if (!schema_.pair_column.empty()) schema_.pair_index = column_index(schema_.pair_column, "`pair_column`");
  const bool texts_alone = options_.labels_optional && columns.size() == (schema_.pair_column.empty() ? 1u : 2u);
  if (texts_alone && is_delimited(schema_.format)) return;
  schema_.label_columns = options_.label_columns;
  for (auto it = schema_.label_columns.begin(); it != schema_.label_columns.end(); ++it) {
    if (std::find(schema_.label_columns.begin(), it, *it) != it)
      fail(ErrorCode::usage, "`label_column`: {} is given twice", *it);
    if (texts_alone) continue;  // jsonl: later rows may have them
    schema_.label_indices.push_back(column_index(*it, "`label_column`"));
  }
}

// --- rows ---

void RowReader::add_row(RowChunk& chunk, std::string_view record, std::string_view text, std::string_view pair,
                        std::span<const std::string_view> labels) {
  if (!is_valid_utf8(record)) return add_bad_row(chunk, record, why_not_utf8(record));
  push_row(chunk, record, text, pair, labels);
}

void RowReader::push_row(RowChunk& chunk, std::string_view record, std::string_view text, std::string_view pair,
                         std::span<const std::string_view> labels) {
  chunk.records.push_back(record);
  chunk.texts.push_back(text);
  if (!schema_.pair_column.empty()) chunk.pairs.push_back(pair);
  chunk.lines.push_back(lines_ + 1);
  chunk.labels.insert(chunk.labels.end(), labels.begin(), labels.end());
  ++rows_;
}

void RowReader::add_bad_row(RowChunk& chunk, std::string_view record, std::string problem) {
  chunk.errors.push_back(
      {chunk.size(), Error(ErrorCode::bad_data, fmt::format("{}: line {}: {}", names_[input_], lines_ + 1, problem))});
  labels_.assign(schema_.label_columns.size(), {});
  push_row(chunk, record, {}, {}, labels_);
}

// Returns the next line without its end, if the block holds all of it. The caller advances lines_ once the row is
// added.
bool RowReader::take_line(std::string_view& line) {
  const char* begin = block_.get() + at_;
  const char* end = block_.get() + used_;
  if (begin == end) return false;
  const char* stop = find_newline(begin, end);
  if (stop == nullptr && !last()) return false;
  at_ = stop == nullptr ? used_ : static_cast<size_t>(stop - block_.get()) + 1;
  if (stop == nullptr) stop = end;
  // A CR belongs to the line end after it; at the end of the input, to a truncated line end.
  if (stop > begin && stop[-1] == '\r') --stop;
  line = {begin, static_cast<size_t>(stop - begin)};
  return true;
}

// For pipes, which cannot be checked before reading: input without any LF must not contain CRs.
void RowReader::refuse_bare_cr(std::string_view line) const {
  if (rows_ > 0 || lines_ > 0 || at_ < used_ || !last() || block().back() == '\n' || !options_.ranges.empty()) return;
  if (const std::string why = why_bare_cr(line); !why.empty())
    fail(ErrorCode::bad_data, "{}: {}", source_->name(), why);
}

void RowReader::parse_txt(RowChunk& chunk) {
  std::string_view line;
  while (!full(chunk) && take_line(line)) {
    refuse_bare_cr(line);
    add_row(chunk, line, line, {}, {});
    ++lines_;
  }
  rows_waiting_ = full(chunk);
}

void RowReader::parse_jsonl(RowChunk& chunk) {
  std::string_view line;
  while (!full(chunk) && take_line(line)) {
    if (is_blank(line))
      chunk.add_blank_line(++blank_lines_);
    else
      take_json_row(chunk, line);
    ++lines_;
  }
  rows_waiting_ = full(chunk);
}

void RowReader::take_json_row(RowChunk& chunk, std::string_view line) {
  if (const JsonProblem problem = scan_json_object(line, members_); problem.what != nullptr)
    return add_bad_row(chunk, line, fmt::format("byte {}: {}", problem.at + 1, problem.what));
  const auto find = [&](const std::string& key) {
    const JsonMember* found = nullptr;
    for (const JsonMember& member : members_)  // the last of several equal keys wins, as in Python
      if (json_key_is(member, key)) found = &member;
    return found;
  };
  const JsonMember *text = nullptr, *pair = nullptr;
  for (auto [member, column] : {std::pair(&text, &schema_.text_column), std::pair(&pair, &schema_.pair_column)}) {
    if (member == &pair && column->empty()) continue;  // the text key may be ""
    *member = find(*column);
    if (*member == nullptr) return add_bad_row(chunk, line, fmt::format("missing key \"{}\"", *column));
    if ((*member)->kind != JsonKind::string)
      return add_bad_row(chunk, line,
                         fmt::format("\"{}\" is {}, not a string", *column, json_kind_name((*member)->kind)));
  }
  auto decoded = [&](const JsonMember* member) -> std::string_view {
    if (!member->value_escaped) return member->value;
    scratch_.clear();
    append_json_unescaped(scratch_, member->value);
    return chunk.keep(scratch_);
  };
  labels_.clear();
  for (const std::string& column : schema_.label_columns) {
    const JsonMember* label = find(column);
    if (options_.labels_optional && (label == nullptr || label->kind == JsonKind::null)) {
      labels_.emplace_back();
      continue;
    }
    if (label == nullptr) return add_bad_row(chunk, line, fmt::format("missing key \"{}\"", column));
    if (label->kind == JsonKind::null || label->kind == JsonKind::array || label->kind == JsonKind::object)
      return add_bad_row(chunk, line, fmt::format("\"{}\" is {}, not a label", column, json_kind_name(label->kind)));
    labels_.push_back(decoded(label));
  }
  add_row(chunk, line, decoded(text), pair == nullptr ? std::string_view() : decoded(pair), labels_);
}

void RowReader::parse_csv(RowChunk& chunk) {
  while (!full(chunk) && at_ < used_) {
    parse_csv_record(block(), at_, last(), schema_.dialect, csv_);
    if (csv_.status == CsvStatus::incomplete) {
      // A quote that stays open for more than the maximum record size counts as never closed.
      if (chunk.size() > 0 || used_ - at_ <= options_.max_record_bytes) return;
      parse_csv_record(block(), at_, true, schema_.dialect, csv_);
      if (csv_.status != CsvStatus::open_quote || csv_.lines == 0) return;
    }
    take_csv_row(chunk);
    at_ = csv_.next;
    lines_ += csv_.lines;
  }
  rows_waiting_ = full(chunk);
}

std::string_view RowReader::csv_text(RowChunk& chunk, const CsvField& field) {
  return field.escaped ? chunk.keep(csv_value(field, scratch_)) : field.raw;
}

void RowReader::take_csv_row(RowChunk& chunk) {
  switch (csv_.status) {
    case CsvStatus::blank:
      chunk.add_blank_line(++blank_lines_);
      return;
    case CsvStatus::incomplete:
      return;
    case CsvStatus::open_quote:
      return add_bad_row(chunk, csv_.raw, fmt::format("unterminated quote in field {}", csv_.error_field + 1));
    case CsvStatus::bad_quote:
      return add_bad_row(chunk, csv_.raw,
                         fmt::format("field {} continues after its closing quote; double quotes inside a quoted field",
                                     csv_.error_field + 1));
    case CsvStatus::record:
      break;
  }
  const auto& fields = csv_.fields;
  if (fields.size() != schema_.columns.size())
    return add_bad_row(chunk, csv_.raw,
                       fmt::format("{}, but the header has {}",
                                   format_count(static_cast<int64_t>(fields.size()), "field"), schema_.columns.size()));
  labels_.clear();
  for (const size_t index : schema_.label_indices) labels_.push_back(csv_text(chunk, fields[index]));
  const bool paired = !schema_.pair_column.empty();
  add_row(chunk, csv_.raw, csv_text(chunk, fields[schema_.text_index]),
          paired ? csv_text(chunk, fields[schema_.pair_index]) : std::string_view(), labels_);
}

}  // namespace brim::rows
