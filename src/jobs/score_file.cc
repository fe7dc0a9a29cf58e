// SPDX-License-Identifier: Apache-2.0
#include "jobs/score_file.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "rows/row_reader.h"

namespace brim::jobs {
namespace {

rows::RowWriterOptions writer_options(const std::vector<ScoredModel>& models, rows::OutputFormat format,
                                      bool all_scores) {
  rows::RowWriterOptions options;
  options.format = format;
  options.results.clear();
  for (const ScoredModel& model : models) {
    rows::ResultColumns& added = options.results.emplace_back();
    added.name = model.name;
    added.entities = model.scorer->kind() == ModelKind::tagger;
    if (!all_scores || added.entities) continue;
    added.score_names = model.labels ? model.labels->labels() : model.scorer->score_names();
    added.scores_at_top = model.scorer->kind() == ModelKind::rules;  // rule scores are not label scores
  }
  return options;
}

// Names of models and labels may combine to duplicate columns.
void require_distinct(const std::vector<std::string>& columns) {
  for (auto it = columns.begin(); it != columns.end(); ++it)
    if (std::find(columns.begin(), it, *it) != it)
      fail(ErrorCode::usage, "duplicate output column {}; rename a model with `model=NAME=MODEL`", *it);
}

}  // namespace

ScoredRows::ScoredRows(std::vector<ScoredModel> models, const rows::RowSchema& schema, rows::OutputFormat format,
                       bool all_scores)
    : models_(std::move(models)),
      all_scores_(all_scores),
      writer_(schema, writer_options(models_, format, all_scores)),
      results_(models_.size()),
      spans_(models_.size()) {
  require_distinct(writer_.added());
}

const std::vector<std::string>& ScoredRows::labels(size_t model) const {
  const ScoredModel& m = models_[model];
  return m.labels ? m.labels->labels() : m.scorer->labels();
}

void ScoredRows::set_label(size_t model, int32_t label, float score, std::span<const float> scores) {
  results_[model] = {.label = labels(model)[static_cast<size_t>(label)], .score = score};
  if (all_scores_) results_[model].scores = scores;
}

void ScoredRows::set_entities(size_t model, std::span<const Entity> entities) {
  std::vector<rows::EntitySpan>& spans = spans_[model];
  spans.clear();
  for (const Entity& e : entities) spans.push_back({e.group, e.score, e.word, e.start, e.end});
  results_[model] = {.entities = spans};
}

std::string counter_name(const std::string& model, std::string_view what) {
  return model.empty() ? std::string(what) : fmt::format("{}: {}", model, what);
}

ScoreFile::ScoreFile(const std::string& path, rows::RunIdentity identity, const rows::RowOutputOptions& options,
                     rows::RowReader& reader, ScoredRows& rows, std::map<std::string, int64_t> counters)
    : reader_(reader),
      rows_(rows),
      counters_(std::move(counters)),
      label_counters_(rows.models().size()),
      output_(path, std::move(identity), options) {
  for (size_t m = 0; m < label_counters_.size(); ++m) label_counters_[m].resize(rows.labels(m).size());
  if (output_.resumed()) {
    counters_ = output_.resumed()->counters;
    reader.seek(output_.resumed()->position);
  } else {
    rows_.header(bytes_);
    output_.write_header(bytes_);
  }
  output_.keep_counters(&counters_);
}

void ScoreFile::write(const engine::ScoredChunk& chunk, BadRows bad_rows) {
  for (size_t row = 0; row < chunk.rows.size(); ++row) {
    bytes_.clear();
    ++counters_["rows"];
    if (const Error* error = chunk.error(row))
      bad_row(chunk, row, *error, bad_rows);
    else
      good_row(chunk, row);
    output_.write_row(bytes_, chunk.rows.position_after(row));
  }
}

void ScoreFile::write_block(std::string_view bytes, int64_t good, int64_t bad, const rows::RowPosition& position) {
  counters_["rows"] += good;
  counters_["bad rows"] += bad;
  output_.write_row(bytes, position);
}

void ScoreFile::bad_row(const engine::ScoredChunk& chunk, size_t row, const Error& error, BadRows bad_rows) {
  constexpr int64_t kLoggedRows = 3;
  const std::string where = placed_error(reader_.inputs(), chunk.rows, row, error).what();
  if (bad_rows == BadRows::stop) {
    --counters_["rows"];  // this row is not written
    throw Error(error.code(), where + "; continue with `on_error=skip` or null");
  }
  if (++counters_["bad rows"] <= kLoggedRows) log_warning("{}", where);
  if (bad_rows == BadRows::null) rows_.null_row(bytes_, chunk.rows, row);
}

void ScoreFile::good_row(const engine::ScoredChunk& chunk, size_t row) {
  for (size_t m = 0; m < rows_.models().size(); ++m) {
    const engine::ChunkScores& found = chunk.of(m);
    if (rows_.has_entities(m)) {
      rows_.set_entities(m, found.entities[row]);
      counters_[counter_name(rows_.models()[m].name, "entities")] += static_cast<int64_t>(found.entities[row].size());
      continue;
    }
    const auto width = static_cast<size_t>(found.width);
    const engine::Choice& choice = found.choices[row];
    rows_.set_label(m, choice.label, choice.score, {&found.scores[row * width], width});
    count_label(m, static_cast<size_t>(choice.label));
  }
  rows_.row(bytes_, chunk.rows, row);
}

void ScoreFile::count_label(size_t model, size_t label) {
  int64_t*& counter = label_counters_[model][label];
  if (counter == nullptr) {
    const std::string& name = rows_.models()[model].name;
    counter = &counters_[counter_name(name, fmt::format("label {}", rows_.labels(model)[label]))];
  }
  ++*counter;
}

std::unique_ptr<ScoreFile> open_score_file(const std::string& path, const rows::RunIdentity& identity,
                                           rows::RowOutputOptions options, rows::RowReader& reader, ScoredRows& rows,
                                           bool restart_if_changed) {
  try {
    return std::make_unique<ScoreFile>(path, identity, options, reader, rows);
  } catch (const Error& error) {
    if (!restart_if_changed || !options.resume || error.code() != ErrorCode::usage) throw;
  }
  options.resume = false;
  return std::make_unique<ScoreFile>(path, identity, options, reader, rows);
}

}  // namespace brim::jobs
