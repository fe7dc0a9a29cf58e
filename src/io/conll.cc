// SPDX-License-Identifier: Apache-2.0
#include "io/conll.h"

#include "base/error.h"

namespace brim {
namespace {

constexpr std::string_view kSpace = " \t";

RowReaderOptions lines_only() {
  RowReaderOptions options;
  options.format = RowFormat::txt;
  return options;
}

bool looks_like_tag(std::string_view text) {
  return text == "O" ||
         (text.size() > 2 && text[1] == '-' && std::string_view("BIESLU").find(text[0]) != std::string_view::npos);
}

}  // namespace

ConllReader::ConllReader(const std::string& path, ConllOptions options)
    : lines_({path}, lines_only()), options_(options) {}
ConllReader::ConllReader(std::unique_ptr<ByteSource> source, ConllOptions options)
    : lines_(std::move(source), lines_only()), options_(options) {}

bool ConllReader::next_line(std::string_view& line) {
  if (++row_ >= chunk_.size()) {
    row_ = 0;
    if (!lines_.next_chunk(chunk_)) return false;
  }
  line = chunk_.texts[row_];
  const size_t end = line.find_last_not_of(kSpace);
  line = line.substr(0, end == std::string_view::npos ? 0 : end + 1);
  return true;
}

void ConllReader::split(std::string_view line) {
  columns_.clear();
  if (line.find('\t') != std::string_view::npos) {
    for (size_t at = 0; at <= line.size();) {
      const size_t end = std::min(line.find('\t', at), line.size());
      columns_.push_back(line.substr(at, end - at));
      at = end + 1;
    }
    return;
  }
  for (size_t at = line.find_first_not_of(' '); at < line.size(); at = line.find_first_not_of(' ', at)) {
    const size_t end = std::min(line.find(' ', at), line.size());
    columns_.push_back(line.substr(at, end - at));
    at = end;
  }
}

// "# id 17 domain=en" before a sentence is a comment; "# O" is the token # with its tag.
bool ConllReader::is_comment(std::string_view line) const {
  return line[0] == '#' && (columns_.size() < 2 || !looks_like_tag(columns_.back()));
}

size_t ConllReader::column(int wanted, const char* what) const {
  const int count = static_cast<int>(columns_.size());
  const int index = wanted < 0 ? count + wanted : wanted;
  if (index < 0 || index >= count)
    fail(ErrorCode::bad_data, "{}: line {}: {} columns, the {} should be in column {}", lines_.inputs()[0],
         chunk_.lines[row_], count, what, wanted < 0 ? wanted : wanted + 1);
  return static_cast<size_t>(index);
}

bool ConllReader::next(ConllSentence& sentence) {
  sentence.tokens.clear();
  sentence.tags.clear();
  std::string_view line;
  while (next_line(line)) {
    // A line without a word separates too: WNUT-17 was published with "<tab>O" between most sentences.
    if (line.empty() || line[0] == '\t' || line.substr(0, 10) == "-DOCSTART-") {
      if (!sentence.tokens.empty()) return true;
      continue;
    }
    split(line);
    if (sentence.tokens.empty() && is_comment(line)) continue;
    if (width_ == 0) width_ = columns_.size();
    if (columns_.size() < 2 || columns_.size() != width_)
      fail(ErrorCode::bad_data, "{}: line {}: {} columns where {} are expected (word … tag)", lines_.inputs()[0],
           chunk_.lines[row_], columns_.size(), std::max<size_t>(width_, 2));
    if (sentence.tokens.empty()) sentence.line = chunk_.lines[row_];
    sentence.tokens.emplace_back(columns_[column(options_.token_column, "word")]);
    sentence.tags.emplace_back(columns_[column(options_.tag_column, "tag")]);
  }
  return !sentence.tokens.empty();
}

std::vector<ConllSentence> read_conll(const std::string& path, ConllOptions options) {
  ConllReader reader(path, options);
  std::vector<ConllSentence> sentences(1);
  while (reader.next(sentences.back())) sentences.emplace_back();
  sentences.pop_back();
  return sentences;
}

}  // namespace brim
