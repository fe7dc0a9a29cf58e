// SPDX-License-Identifier: Apache-2.0
#include "serve/row_scorer.h"

#include "base/error.h"
#include "base/units.h"

namespace brim::serve {
namespace {

// Past this many bytes no honest file is a hundred times what it was compressed to.
constexpr int64_t kAnyBytes = 16 << 20, kMostTimes = 100;

void require_modest(const RowPlace& last) {
  const int64_t bytes = last.chunk->position_after(last.row).offset, packed = last.chunk->file_bytes();
  if (bytes > kAnyBytes && bytes / kMostTimes > packed)
    fail(ErrorCode::bad_data, "the rows are compressed to less than a {}th: {} bytes of {} so far", kMostTimes, packed,
         bytes);
}

// The reader ends where it would have to hold a longer one; up to twice as much it may have read at once.
void require_short(std::span<const RowPlace> rows) {
  for (const auto& [chunk, row] : rows)
    if (chunk->records[row].size() > kLongestRow)
      fail(ErrorCode::bad_data, "line {}: the record is longer than {}", chunk->lines[row],
           format_bytes(static_cast<int64_t>(kLongestRow)));
}

}  // namespace

Predictions score_texts(Scorer& scorer, Texts texts, Texts pairs, std::stop_token stop) {
  return pairs.empty() ? scorer.score(texts, std::move(stop)) : scorer.score_pairs(texts, pairs, std::move(stop));
}

rows::ResultColumns RowScorer::columns(const Scorer& scorer, bool all_scores, const std::string& model) {
  if (scorer.kind() == ModelKind::embedder)
    fail(ErrorCode::bad_model, "{}: gives vectors, and rows want labels", model);
  rows::ResultColumns columns;
  columns.entities = scorer.kind() == ModelKind::tagger;
  if (!all_scores || columns.entities) return columns;
  columns.score_names = scorer.score_names();
  columns.scores_at_top = scorer.kind() == ModelKind::rules;
  return columns;
}

std::optional<RowScorer::Done> RowScorer::operator()(std::span<const RowPlace> rows, std::string& bytes,
                                                     std::stop_token stop) {
  if (!rows.empty()) require_modest(rows.back());
  require_short(rows);
  texts_.clear();
  pairs_.clear();
  for (const RowPlace& place : rows) {
    if (place.chunk->error(place.row) != nullptr) continue;
    texts_.push_back(place.chunk->texts[place.row]);
    if (const auto pair = place.chunk->pair(place.row)) pairs_.push_back(*pair);
  }
  const Predictions p = score_(texts_, pairs_, stop);
  if (stop.stop_requested()) return std::nullopt;
  if (!pairs_.empty() && p.errors.size() == texts_.size())  // the model's fault, not one row's
    for (const auto& [row, error] : p.errors)
      if (error.code() == ErrorCode::bad_model || error.code() == ErrorCode::usage) throw error;
  Done done;
  done.tokens = p.tokens;
  size_t text = 0, error = 0;
  for (const RowPlace& place : rows) {
    const bool readable = place.chunk->error(place.row) == nullptr;
    const size_t at = readable ? text++ : 0;
    while (error < p.errors.size() && readable && p.errors[error].first < at) ++error;
    const bool scored = readable && (error == p.errors.size() || p.errors[error].first != at);
    ++(scored ? done.good : done.bad);
    if (scored)
      put(bytes, place, p, at);
    else
      writer_.null_row(bytes, *place.chunk, place.row);
  }
  return done;
}

void RowScorer::put(std::string& bytes, const RowPlace& place, const Predictions& p, size_t at) {
  rows::RowResult result;
  if (!p.entities.empty()) {
    spans_.clear();
    for (const Entity& e : p.entities[at]) spans_.push_back({e.group, e.score, e.word, e.start, e.end});
    result.entities = spans_;
  } else {
    result.label = scorer_.labels()[static_cast<size_t>(p.labels[at])];
    result.score = p.label_scores[at];
    if (all_scores_) result.scores = std::span(p.scores).subspan(at * p.width, p.width);
  }
  writer_.row(bytes, *place.chunk, place.row, result);
}

}  // namespace brim::serve
