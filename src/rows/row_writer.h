// SPDX-License-Identifier: Apache-2.0
// Scored rows as csv, tsv or jsonl: the original columns as they were, ours after them. Where input and output have the
// same format the record's bytes are copied untouched; a JSON object gets its new members spliced in before its brace.
// Scores are written as the shortest decimal that reads back as the same float.
//
// Names: `label`, `score`, then one column a class or VADER's four with all scores (jsonl: `scores`: {…}, VADER's four
// at top level), or `entities`. Results of several models stand one after another, each name with its model's before
// it: `ner_entities`. If the input has a column of one of these names, it keeps it and all of ours are called
// `predicted_…`. A jsonl row that has such a key although the rows at the file's start had none gets the prefix alone.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rows/csv.h"
#include "rows/row_reader.h"

namespace brim::rows {

enum class OutputFormat { csv, tsv, jsonl };
const char* output_format_name(OutputFormat format);
OutputFormat parse_output_format(std::string_view name);  // Error(usage) for an unknown one
// By the output's name (.csv, .tsv, .jsonl, also before .gz/.zst); else as the input is, csv for txt.
OutputFormat output_format_of(std::string_view path, RowFormat input);

// One named span of a text, as Hugging Face's pipelines write it; offsets count code points.
struct EntitySpan {
  std::string_view entity_group;
  float score;
  std::string_view word;
  int64_t start, end;
};

// The columns that one model adds.
struct ResultColumns {
  std::string name;                      // not empty: stands before each of them, with an underscore
  bool entities = false;                 // rows carry entities instead of a label
  std::vector<std::string> score_names;  // not empty: every row carries one more score for each (--all-scores)
  bool scores_at_top = false;            // jsonl: score_names are keys of the row itself (VADER), not of "scores"
};

// What one model gave for a row: a label with its score and, with --all-scores, one for each name; or entities.
struct RowResult {
  std::string_view label;
  float score = 0;
  std::span<const float> scores;
  std::span<const EntitySpan> entities;
};

struct RowWriterOptions {
  OutputFormat format = OutputFormat::csv;
  std::vector<ResultColumns> results = {ResultColumns()};  // one for each model
};

// Turns rows into bytes; where they go is the caller's affair (see RowOutput in resume.h). Not thread-safe.
class RowWriter {
 public:
  RowWriter(const RowSchema& schema, RowWriterOptions options);

  // Appends the header line (csv, tsv); nothing for jsonl. Once, at the start of the output.
  void header(std::string& out) const;
  // Appends row `row` of `chunk` with its results, one for each of the options'.
  void row(std::string& out, const RowChunk& chunk, size_t row, std::span<const RowResult> results);
  void row(std::string& out, const RowChunk& chunk, size_t at, const RowResult& only) {
    row(out, chunk, at, std::span(&only, 1));
  }
  // A row without result (--on-error null): empty fields, JSON null. A broken record keeps its bytes: csv rows are
  // brought to the header's width, a line that is no JSON object becomes {"invalid_json": "…"}.
  void null_row(std::string& out, const RowChunk& chunk, size_t row);

  const std::vector<std::string>& added() const { return added_; }  // our columns' names

 private:
  std::vector<std::string> our_names(const std::string& prefix) const;
  void put_delimited(std::string& out, const ResultColumns& columns, const RowResult& result);
  // Writes the members of one result under the keys from `key` on; returns the key behind them.
  size_t put_json(std::string& out, const std::vector<std::string>& keys, size_t key, size_t model,
                  const RowResult& result) const;
  void begin_delimited(std::string& out, const RowChunk& chunk, size_t row);
  void csv_columns(std::string& out, const RowChunk& chunk, size_t row);
  void json_columns(std::string& out, std::string_view record);
  // Opens the object up to where our members begin; returns the keys to use in this row.
  const std::vector<std::string>& begin_json(std::string& out, const RowChunk& chunk, size_t row);
  bool json_clash(std::string_view record);
  void field(std::string& out, std::string_view value) const;

  RowSchema schema_;
  RowWriterOptions options_;
  std::vector<std::string> added_;
  // As JSON keys, "name": with quotes and colon: ours, ours with one more prefix, the input's, each model's classes'.
  std::vector<std::string> keys_, prefixed_keys_, column_keys_;
  std::vector<std::vector<std::string>> score_keys_;
  bool raw_copy_ = false;  // the record's bytes are the output's
  char delimiter_ = ',';
  bool warned_ = false;

  CsvRecord csv_;
  std::vector<JsonMember> members_;
  std::string scratch_, json_;
};

}  // namespace brim::rows
