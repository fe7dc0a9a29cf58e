// SPDX-License-Identifier: Apache-2.0
// Writes scored rows: the output of `brim score`, of a shard and of a job of the server, which can be resumed, and the
// rows of /score. Does not score texts (engine/score_rows.h, brim::Scorer).
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "brim/brim.h"
#include "engine/score_rows.h"
#include "rows/resume.h"
#include "rows/row_writer.h"

namespace brim::jobs {

struct ScoredModel {
  const Scorer* scorer = nullptr;
  std::string name = {};                              // prefix of its columns; empty for a single model
  std::shared_ptr<const ZeroShotLabels> labels = {};  // labels that replace the scorer's, if any
};

// Formats rows with the results of one or several models.
class ScoredRows {
 public:
  // Throws usage if two columns would have the same name.
  ScoredRows(std::vector<ScoredModel> models, const rows::RowSchema& schema, rows::OutputFormat format,
             bool all_scores);

  const std::vector<ScoredModel>& models() const { return models_; }
  const std::vector<std::string>& labels(size_t model) const;
  bool has_entities(size_t model) const { return models_[model].scorer->kind() == ModelKind::tagger; }
  void header(std::string& out) const { writer_.header(out); }
  // Results of a model for the next row(). `scores` and `entities` must stay valid until then.
  void set_label(size_t model, int32_t label, float score, std::span<const float> scores);
  void set_entities(size_t model, std::span<const Entity> entities);
  void row(std::string& out, const rows::RowChunk& chunk, size_t row) { writer_.row(out, chunk, row, results_); }
  void null_row(std::string& out, const rows::RowChunk& chunk, size_t row) { writer_.null_row(out, chunk, row); }

 private:
  std::vector<ScoredModel> models_;
  bool all_scores_;
  rows::RowWriter writer_;
  std::vector<rows::RowResult> results_;  // by model, like the spans
  std::vector<std::vector<rows::EntitySpan>> spans_;
};

// Handling of rows that cannot be scored: skip leaves them out, null writes them with empty results.
enum class BadRows : uint8_t { stop, skip, null };

// Counter of one model; its name is included if there are several.
std::string counter_name(const std::string& model, std::string_view what);

// The file of a run, with counters that a resumed run continues: "rows", "bad rows", and per model "label …" or
// "entities".
class ScoreFile {
 public:
  // Opens the output. A resumed run continues after the rows already written: `reader` is positioned there. All
  // references must outlive this object.
  ScoreFile(const std::string& path, rows::RunIdentity identity, const rows::RowOutputOptions& options,
            rows::RowReader& reader, ScoredRows& rows, std::map<std::string, int64_t> counters = {});

  const std::optional<rows::RowOutput::Progress>& resumed() const { return output_.resumed(); }
  std::map<std::string, int64_t>& counters() { return counters_; }
  rows::RowOutput& output() { return output_; }

  // Writes the rows of a chunk. With BadRows::stop, a bad row is thrown, with its position; the first three others are
  // logged.
  void write(const engine::ScoredChunk& chunk, BadRows bad_rows);
  // Writes rows that the caller has formatted, as one unit of which a resumed run repeats all or nothing.
  void write_block(std::string_view bytes, int64_t good, int64_t bad, const rows::RowPosition& position);

 private:
  void bad_row(const engine::ScoredChunk& chunk, size_t row, const Error& error, BadRows bad_rows);
  void good_row(const engine::ScoredChunk& chunk, size_t row);

  void count_label(size_t model, size_t label);

  const rows::RowReader& reader_;
  ScoredRows& rows_;
  std::map<std::string, int64_t> counters_;            // also stored by the output at its end
  std::vector<std::vector<int64_t*>> label_counters_;  // by model and label; null before its first row
  rows::RowOutput output_;
  std::string bytes_;
};

// `restart_if_changed`: instead of an error, start again if the run to resume had other options or another device.
std::unique_ptr<ScoreFile> open_score_file(const std::string& path, const rows::RunIdentity& identity,
                                           rows::RowOutputOptions options, rows::RowReader& reader, ScoredRows& rows,
                                           bool restart_if_changed);

}  // namespace brim::jobs
