// SPDX-License-Identifier: Apache-2.0
// CoNLL files: one token a line with its columns (the first is the word, the last the tag unless told otherwise),
// sentences separated by blank lines, documents by -DOCSTART- lines, which are skipped. Columns are separated by tabs
// where a line has one, else by spaces. Tags are given as they stand: IOB1, IOB2 or IOBES is for the reader to know.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "io/row_reader.h"

namespace brim {

struct ConllOptions {
  int token_column = 0;
  int tag_column = -1;  // negative: from the end
};

struct ConllSentence {
  int64_t line = 0;  // of its first token, from 1
  std::vector<std::string> tokens, tags;
};

class ConllReader {
 public:
  explicit ConllReader(const std::string& path, ConllOptions options = {});  // "-", .gz and .zst as everywhere
  explicit ConllReader(std::unique_ptr<ByteSource> source, ConllOptions options = {});
  // False at the end. A line with another number of columns than the first token's is Error(bad_data).
  bool next(ConllSentence& sentence);

 private:
  bool next_line(std::string_view& line);
  void split(std::string_view line);
  bool is_comment(std::string_view line) const;
  size_t column(int wanted, const char* what) const;

  RowReader lines_;
  ConllOptions options_;
  RowChunk chunk_;
  size_t row_ = 0;
  size_t width_ = 0;  // columns of the first token line
  std::vector<std::string_view> columns_;
};

std::vector<ConllSentence> read_conll(const std::string& path, ConllOptions options = {});

}  // namespace brim
