// SPDX-License-Identifier: Apache-2.0
#include "rows/conll.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "rows/file_checks.h"

namespace brim::rows {
namespace {

constexpr std::string_view kSpace = " \t";
constexpr std::string_view kPrefixes = "BIESLU";
constexpr std::string_view kTagKey = "ner_tags";

RowReaderOptions lines_only() {
  RowReaderOptions options;
  options.format = RowFormat::txt;
  return options;
}

bool has_prefix(std::string_view tag) {
  return tag.size() > 2 && tag[1] == '-' && kPrefixes.find(tag[0]) != std::string_view::npos;
}
bool looks_like_tag(std::string_view text) { return text == "O" || has_prefix(text); }

void split_columns(std::string_view line, std::vector<std::string_view>& columns) {
  columns.clear();
  if (line.find('\t') != std::string_view::npos) {
    for (size_t at = 0; at <= line.size();) {
      const size_t end = std::min(line.find('\t', at), line.size());
      columns.push_back(line.substr(at, end - at));
      at = end + 1;
    }
    return;
  }
  for (size_t at = line.find_first_not_of(' '); at < line.size(); at = line.find_first_not_of(' ', at)) {
    const size_t end = std::min(line.find(' ', at), line.size());
    columns.push_back(line.substr(at, end - at));
    at = end;
  }
}

std::string_view without_end(std::string_view line) {
  const size_t end = line.find_last_not_of(" \t\r");
  return line.substr(0, end == std::string_view::npos ? 0 : end + 1);
}

// True for a line that ends a sentence, including a line without a word: WNUT-17 was published with "<tab>O" between
// most sentences.
bool separates(std::string_view line) { return line.empty() || line[0] == '\t' || line.substr(0, 10) == "-DOCSTART-"; }

// "# id 17 domain=en" before a sentence is a comment; "# O" is the word # with its tag.
bool is_comment_line(std::string_view line, const std::vector<std::string_view>& columns) {
  return line[0] == '#' && (columns.size() < 2 || !looks_like_tag(columns.back()));
}

bool is_jsonl(const std::string& path, const std::string& format) {
  return format == "jsonl" || (format == "auto" && row_format_of(path) == RowFormat::jsonl);
}

}  // namespace

TaggedReader::TaggedReader(const std::string& path, TaggedFormat format, std::vector<std::string> names)
    : lines_({path}, lines_only()), format_(format), names_(std::move(names)) {}
TaggedReader::TaggedReader(std::unique_ptr<io::ByteSource> source, TaggedFormat format, std::vector<std::string> names)
    : lines_(std::move(source), lines_only()), format_(format), names_(std::move(names)) {}

void TaggedReader::bad(const std::string& what) const {
  fail(ErrorCode::bad_data, "{}: line {}: {}", lines_.inputs()[0], chunk_.lines[row_], what);
}

bool TaggedReader::next_line(std::string_view& line) {
  if (++row_ >= chunk_.size()) {
    row_ = 0;
    if (!lines_.next_chunk(chunk_)) return false;
  }
  if (const Error* error = chunk_.error(row_)) throw *error;
  line = without_end(chunk_.texts[row_]);
  return true;
}

std::string TaggedReader::checked_tag(std::string_view tag) {
  if (std::find(names_.begin(), names_.end(), tag) != names_.end() || tag == "O") return std::string(tag);
  if (!tag.empty() && tag.find_first_not_of("0123456789") == std::string_view::npos) {
    const size_t number = tag.size() < 7 ? std::stoul(std::string(tag)) : SIZE_MAX;
    if (names_.empty())
      bad(
          fmt::format("tag {} is a number, but the tag names are unknown; write names instead of numbers (in Python: "
                      "features[\"{}\"].feature.int2str) or start from a model with tag names",
                      tag, kTagKey));
    if (number >= names_.size())
      bad(fmt::format("tag {} is out of range: the model has {}, numbered from 0", tag, names_.size()));
    return names_[number];
  }
  constexpr const char* kWanted = "expected O, B-TYPE or I-TYPE (also S-, E-, U-, L-)";
  if (has_prefix(tag)) {
    if (!bare_.empty())
      bad(fmt::format("tag '{}' has a prefix but an earlier tag, '{}', has none; {}", tag, bare_, kWanted));
    if (prefixed_.empty()) prefixed_ = tag;
    return std::string(tag);
  }
  // Bare types are valid tags if no other tag has a prefix.
  if (tag.size() < 2 || tag[1] == '-' || !prefixed_.empty()) bad(fmt::format("invalid tag '{}'; {}", tag, kWanted));
  if (width_ > 2)
    bad(fmt::format("invalid tag '{}' in the last of {} columns; {} in the last column", tag, width_, kWanted));
  if (bare_.empty()) bare_ = tag;
  return std::string(tag);
}

bool TaggedReader::next(TaggedWords& sentence) {
  sentence.words.clear();
  sentence.tags.clear();
  return format_ == TaggedFormat::jsonl ? next_jsonl(sentence) : next_conll(sentence);
}

bool TaggedReader::next_conll(TaggedWords& sentence) {
  std::string_view line;
  while (next_line(line)) {
    if (separates(line)) {
      if (!sentence.words.empty()) return true;
      continue;
    }
    split_columns(line, columns_);
    if (sentence.words.empty() && is_comment_line(line, columns_)) continue;
    if (width_ == 0) width_ = columns_.size();
    if (columns_.size() < 2 || columns_.size() != width_)
      bad(fmt::format("{} columns, expected {} (word … tag)", columns_.size(), std::max<size_t>(width_, 2)));
    if (sentence.words.empty()) sentence.line = chunk_.lines[row_];
    sentence.words.emplace_back(columns_.front());
    sentence.tags.push_back(checked_tag(columns_.back()));
  }
  return !sentence.words.empty();
}

bool TaggedReader::next_jsonl(TaggedWords& sentence) {
  using Json = nlohmann::json;
  std::string_view line;
  while (next_line(line)) {
    if (line.empty()) continue;
    const Json row = Json::parse(line, nullptr, false);
    if (!row.is_object()) bad("not a JSON object");
    const auto list = [&](std::string_view key) -> const Json& {
      const auto found = row.find(key);
      if (found == row.end() || !found->is_array()) bad(fmt::format("\"{}\" is missing or not a list", key));
      return *found;
    };
    const Json &words = list("tokens"), &tags = list(kTagKey);
    if (words.size() != tags.size())
      bad(fmt::format("{} \"tokens\" but {} \"{}\"; give one tag per token", words.size(), tags.size(), kTagKey));
    if (words.empty()) continue;
    sentence.line = chunk_.lines[row_];
    sentence.one_line = true;
    for (size_t i = 0; i < words.size(); ++i) {
      if (!words[i].is_string()) bad(fmt::format("\"tokens\"[{}] is not a string", i));
      if (!tags[i].is_string() && !tags[i].is_number_unsigned())
        bad(fmt::format("\"{}\"[{}] is neither a tag name nor a tag number", kTagKey, i));
      sentence.words.push_back(words[i].get<std::string>());
      sentence.tags.push_back(checked_tag(tags[i].is_string() ? tags[i].get<std::string>() : tags[i].dump()));
    }
    return true;
  }
  return false;
}

bool has_conll_name(std::string_view path) {
  path = io::without_compression(path);
  return path.ends_with(".conll") || path.ends_with(".iob") || path.ends_with(".bio");
}

bool looks_like_conll(std::string_view head) {
  constexpr size_t kEnough = 20, kFewest = 2;
  std::vector<std::string_view> columns;
  size_t width = 0, words = 0;
  for (size_t at = 0; at < head.size() && words < kEnough;) {
    const size_t end = head.find('\n', at);
    if (end == std::string_view::npos && words > 0) break;  // the last line may be truncated
    const std::string_view line = without_end(head.substr(at, end == std::string_view::npos ? end : end - at));
    at = end == std::string_view::npos ? head.size() : end + 1;
    if (separates(line)) continue;
    split_columns(line, columns);
    if (is_comment_line(line, columns)) continue;
    if (width == 0) width = columns.size();
    if (columns.size() < 2 || columns.size() != width || !looks_like_tag(columns.back())) return false;
    ++words;
  }
  return words >= kFewest;
}

bool is_tagged_file(const std::string& path, const std::string& format) {
  if (format == "conll") return true;
  if (format == "auto" && has_conll_name(path)) return true;
  const bool jsonl = is_jsonl(path, format);
  if ((!jsonl && (format != "auto" || row_format_of(path) != RowFormat::txt)) || !io::is_rereadable(path)) return false;
  const std::string head = io::read_head(path, kHeadBytes);
  if (!jsonl) return looks_like_conll(head);
  const auto row = nlohmann::json::parse(head.substr(0, head.find('\n')), nullptr, false);
  return row.is_object() && row.contains("tokens") && row.contains(kTagKey);
}

std::vector<TaggedWords> read_tagged(const std::string& path, const std::string& format,
                                     const std::vector<std::string>& names) {
  TaggedReader reader(path, is_jsonl(path, format) ? TaggedFormat::jsonl : TaggedFormat::conll, names);
  std::vector<TaggedWords> sentences(1);
  while (reader.next(sentences.back())) sentences.emplace_back();
  sentences.pop_back();
  return sentences;
}

}  // namespace brim::rows
