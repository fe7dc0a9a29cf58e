// SPDX-License-Identifier: Apache-2.0
// Reads sentences of tagged words from two formats. CoNLL: one word per line with its columns (the first is the word,
// the last the tag), blank lines between sentences, -DOCSTART- lines between documents (skipped); columns are separated
// by tabs if the line contains one, otherwise by spaces. JSON lines as written by Hugging Face datasets: {"tokens":
// [...], "ner_tags": [...]}. Tags are validated but not converted: IOB1, IOB2 and IOBES are left to the caller.
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
  int64_t line = 0;       // line of the first word, from 1
  bool one_line = false;  // jsonl
  std::vector<std::string> words, tags;
  int64_t line_of(size_t word) const { return one_line ? line : line + static_cast<int64_t>(word); }
};

class TaggedReader {
 public:
  // `names` are the tags of the model, if any: numeric tags in the file index into them. Supports "-", .gz and .zst.
  TaggedReader(const std::string& path, TaggedFormat format, std::vector<std::string> names = {});
  TaggedReader(std::unique_ptr<io::ByteSource> source, TaggedFormat format, std::vector<std::string> names = {});
  // Returns false at the end. Throws Error(bad_data) with file and line if the number of columns differs from the first
  // line, or if a tag is invalid. Valid tags: O, one of the prefixes B I E S L U with a type, or a bare type in a
  // two-column file without prefixes.
  bool next(TaggedWords& sentence);

 private:
  bool next_line(std::string_view& line);
  bool next_conll(TaggedWords& sentence);
  bool next_jsonl(TaggedWords& sentence);
  std::string checked_tag(std::string_view tag);
  [[noreturn]] void bad(const std::string& what) const;  // prepends file and line

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

// True if a file beginning with `head` is clearly CoNLL: its first lines all have the same number of columns and a tag
// in the last one.
bool looks_like_conll(std::string_view head);

// Whether the file holds tagged words. `format` is the user's choice: conll is trusted, auto decides by the file name
// or the first bytes.
bool is_tagged_file(const std::string& path, const std::string& format);

// Reads all sentences. Uses jsonl if `format` (or, with auto, the file name) selects it, otherwise CoNLL.
std::vector<TaggedWords> read_tagged(const std::string& path, const std::string& format,
                                     const std::vector<std::string>& names = {});

}  // namespace brim::rows
