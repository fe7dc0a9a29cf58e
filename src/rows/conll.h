// SPDX-License-Identifier: Apache-2.0
// Sentences of words with tags, in two forms. CoNLL: one word per line with its columns (the first is the word, the
// last the tag), sentences separated by blank lines, documents by -DOCSTART- lines, which are skipped; columns are
// separated by tabs where a line has one, else by spaces. JSON lines as Hugging Face's data sets write them:
// {"tokens": [...], "ner_tags": [...]}. Tags are checked and given as they stand: IOB1, IOB2 or IOBES is for the reader
// to know.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rows/row_reader.h"

namespace brim::rows {

enum class TaggedFormat { conll, jsonl };

struct TaggedWords {
  int64_t line = 0;       // of its first word, from 1
  bool one_line = false;  // jsonl
  std::vector<std::string> words, tags;
  int64_t line_of(size_t word) const { return one_line ? line : line + static_cast<int64_t>(word); }
};

class TaggedReader {
 public:
  // `names` are the tags of a model, where there is one: numbers in the file then stand for them. "-", .gz and .zst as
  // everywhere.
  TaggedReader(const std::string& path, TaggedFormat format, std::vector<std::string> names = {});
  TaggedReader(std::unique_ptr<io::ByteSource> source, TaggedFormat format, std::vector<std::string> names = {});
  // False at the end. Error(bad_data) with file and line for a line with another number of columns than the first, or
  // what is not a tag: O, a prefix of B I E S L U with a type, or in a file without prefixes and of two columns a type.
  bool next(TaggedWords& sentence);

 private:
  bool next_line(std::string_view& line);
  bool next_conll(TaggedWords& sentence);
  bool next_jsonl(TaggedWords& sentence);
  std::string checked_tag(std::string_view tag);
  [[noreturn]] void bad(const std::string& what) const;  // file and line stand before it

  RowReader lines_;
  TaggedFormat format_;
  std::vector<std::string> names_;
  RowChunk chunk_;
  size_t row_ = 0;
  size_t width_ = 0;             // columns of the first word's line
  std::string prefixed_, bare_;  // the first tag of each kind
  std::vector<std::string_view> columns_;
};

bool has_conll_name(std::string_view path);  // .conll, .iob, .bio; .gz or .zst may follow

// Whether a file beginning with `head` plainly is CoNLL: its first lines all have equally many columns and a tag in the
// last.
bool looks_like_conll(std::string_view head);

// Whether the file holds tagged words. `format` is what the user said: conll is believed, auto goes by the name or
// by what the file begins with.
bool is_tagged_file(const std::string& path, const std::string& format);

// All sentences. jsonl where `format` or, with auto, the name says so; else CoNLL.
std::vector<TaggedWords> read_tagged(const std::string& path, const std::string& format,
                                     const std::vector<std::string>& names = {});

}  // namespace brim::rows
