// SPDX-License-Identifier: Apache-2.0
// Scored rows as csv, tsv or jsonl: the original columns as they were, ours after them. Where input and output have the
// same format the record's bytes are copied untouched; a JSON object gets its new members spliced in before its brace.
// Scores are written as the shortest decimal that reads back as the same float.
//
// Names: `label`, `score`, then one column a class or VADER's four with all scores (jsonl: `scores`: {…}, VADER's four
// at top level), or `entities`. If the input has a column of one of these names, it keeps it and all of ours are called
// `predicted_…`. A jsonl row that has such a key although the rows at the file's start had none gets the prefix alone.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/csv.h"
#include "io/row_reader.h"

namespace brim {

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

struct RowWriterOptions {
  OutputFormat format = OutputFormat::csv;
  bool entities = false;                 // rows carry entities instead of a label
  std::vector<std::string> score_names;  // not empty: every row carries one more score for each (--all-scores)
  bool scores_at_top = false;            // jsonl: score_names are keys of the row itself (VADER), not of "scores"
};

// Turns rows into bytes; where they go is the caller's affair (see RowOutput in resume.h). Not thread-safe.
class RowWriter {
 public:
  RowWriter(const RowSchema& schema, RowWriterOptions options);

  // Appends the header line (csv, tsv); nothing for jsonl. Once, at the start of the output.
  void header(std::string& out) const;
  // Append row `row` of `chunk` with its result.
  void labelled(std::string& out, const RowChunk& chunk, size_t row, std::string_view label, float score,
                std::span<const float> scores = {});
  void entities(std::string& out, const RowChunk& chunk, size_t row, std::span<const EntitySpan> entities);
  // A row without result (--on-error null): empty fields, JSON null. A broken record keeps its bytes: csv rows are
  // brought to the header's width, a line that is no JSON object becomes {"invalid_json": "…"}.
  void null_row(std::string& out, const RowChunk& chunk, size_t row);

  const std::vector<std::string>& added() const { return added_; }  // our columns' names

 private:
  std::vector<std::string> our_names(const std::string& prefix) const;
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
  // As JSON keys, "name": with quotes and colon: ours, ours with one more prefix, the classes', the input's.
  std::vector<std::string> keys_, prefixed_keys_, score_keys_, column_keys_;
  bool raw_copy_ = false;  // the record's bytes are the output's
  char delimiter_ = ',';
  bool warned_ = false;

  CsvRecord csv_;
  std::vector<JsonMember> members_;
  std::string scratch_, json_;
};

}  // namespace brim
