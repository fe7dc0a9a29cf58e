// SPDX-License-Identifier: Apache-2.0
// Writes scored rows as csv, tsv or jsonl: the original columns unchanged, followed by the added ones. If input and
// output have the same format, the record's bytes are copied; a JSON object gets its new members inserted before the
// closing brace. Scores are written as the shortest decimal that reads back as the same float.
//
// Column names: `label`, `score`, then one column per class or VADER's four if all scores are requested (jsonl:
// `scores`: {…}, VADER's four at top level), or `entities`. With several models, each name is prefixed with the model's
// name: `ner_entities`. If the input already has a column with one of these names, it is kept and all added columns are
// renamed to `predicted_…`. A jsonl row with such a key, in a file whose first rows have none, gets the prefix in this
// row only.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rows/csv.h"
#include "rows/row_reader.h"

namespace brim::rows {

inline const std::string kResultPrefix = "predicted_";

enum class OutputFormat { csv, tsv, jsonl };
const char* output_format_name(OutputFormat format);
OutputFormat parse_output_format(std::string_view name);  // throws Error(usage) if unknown
// Format by output name (.csv, .tsv, .jsonl, also before .gz/.zst); otherwise the input's format, csv for txt.
OutputFormat output_format_of(std::string_view path, RowFormat input);

// One named span of a text, in the format of Hugging Face pipelines; offsets count code points.
struct EntitySpan {
  std::string_view entity_group;
  float score;
  std::string_view word;
  int64_t start, end;
};

// The columns added by one model.
struct ResultColumns {
  std::string name;                      // if not empty: prefix for each column, followed by an underscore
  bool entities = false;                 // rows have entities instead of a label
  std::vector<std::string> score_names;  // if not empty: every row has one more score per name (--all-scores)
  bool scores_at_top = false;            // jsonl: score_names are top-level keys (VADER), not members of "scores"
};

// Result of one model for a row: a label with its score and, with --all-scores, one score per name; or entities.
struct RowResult {
  std::string_view label;
  float score = 0;
  std::span<const float> scores;
  std::span<const EntitySpan> entities;
};

struct RowWriterOptions {
  OutputFormat format = OutputFormat::csv;
  std::vector<ResultColumns> results = {ResultColumns()};  // one per model
};

// Formats rows as bytes; the caller writes them (see RowOutput in resume.h). Not thread-safe.
class RowWriter {
 public:
  RowWriter(const RowSchema& schema, RowWriterOptions options);

  // Appends the header line (csv, tsv); nothing for jsonl. Call once, at the start of the output.
  void header(std::string& out) const;
  // Appends row `row` of `chunk` with its results, one per entry in the options.
  void row(std::string& out, const RowChunk& chunk, size_t row, std::span<const RowResult> results);
  void row(std::string& out, const RowChunk& chunk, size_t at, const RowResult& only) {
    row(out, chunk, at, std::span(&only, 1));
  }
  // Appends a row without a result (--on-error null): empty fields, JSON null. A broken record keeps its bytes: csv
  // rows are adjusted to the header's width, a line that is not a JSON object becomes {"invalid_json": "…"}.
  void null_row(std::string& out, const RowChunk& chunk, size_t row);

  const std::vector<std::string>& added() const { return added_; }  // names of the added columns

 private:
  std::vector<std::string> our_names(const std::string& prefix) const;
  void put_delimited(std::string& out, const ResultColumns& columns, const RowResult& result);
  // Writes the members of one result, using keys from index `key` on; returns the index after the last one.
  size_t put_json(std::string& out, const std::vector<std::string>& keys, size_t key, size_t model,
                  const RowResult& result) const;
  void begin_delimited(std::string& out, const RowChunk& chunk, size_t row);
  void csv_columns(std::string& out, const RowChunk& chunk, size_t row);
  void json_columns(std::string& out, std::string_view record);
  // Writes the object up to the added members; returns the keys to use in this row.
  const std::vector<std::string>& begin_json(std::string& out, const RowChunk& chunk, size_t row);
  bool json_clash(std::string_view record);
  void field(std::string& out, std::string_view value) const;

  RowSchema schema_;
  RowWriterOptions options_;
  std::vector<std::string> added_;
  // JSON keys in the form "name": for the added columns, those with one more prefix, the input's columns, and each
  // model's classes.
  std::vector<std::string> keys_, prefixed_keys_, column_keys_;
  std::vector<std::vector<std::string>> score_keys_;
  bool raw_copy_ = false;  // copy the record's bytes to the output
  char delimiter_ = ',';
  bool warned_ = false;

  CsvRecord csv_;
  std::vector<JsonMember> members_;
  std::string scratch_, json_;
};

}  // namespace brim::rows
