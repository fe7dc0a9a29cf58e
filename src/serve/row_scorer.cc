// SPDX-License-Identifier: Apache-2.0
#include "serve/row_scorer.h"

#include "base/error.h"
#include "base/units.h"

namespace brim::serve {
namespace {

// Guards against decompression bombs: beyond this size, real data is not compressed by such a ratio.
constexpr int64_t kUncheckedBytes = 16 << 20, kMaxRatio = 100;

void require_plausible_ratio(const RowRef& last) {
  const int64_t bytes = last.chunk->position_after(last.row).offset, packed = last.chunk->file_bytes();
  if (bytes > kUncheckedBytes && bytes / kMaxRatio > packed)
    fail(ErrorCode::bad_data, "compression ratio above {}: {} bytes expand to {}", kMaxRatio, packed, bytes);
}

// The reader stops at records that exceed its buffer, but may already have read records of twice the limit.
void require_short(std::span<const RowRef> rows) {
  for (const auto& [chunk, row] : rows)
    if (chunk->records[row].size() > kLongestRow)
      fail(ErrorCode::bad_data, "line {}: the record is longer than {}", chunk->lines[row],
           format_bytes(static_cast<int64_t>(kLongestRow)));
}

}  // namespace

Predictions score_texts(Scorer& scorer, Texts texts, Texts pairs, std::stop_token stop,
                        const std::function<void(size_t)>& progress) {
  return pairs.empty() ? scorer.score(texts, std::move(stop), progress)
                       : scorer.score_pairs(texts, pairs, std::move(stop), progress);
}

void require_labels(const Scorer& scorer, const std::string& model) {
  if (scorer.kind() == ModelKind::embedder) fail(ErrorCode::bad_model, "{}: embedding models cannot score rows", model);
}

std::optional<RowScorer::Done> RowScorer::operator()(std::span<const RowRef> rows, std::string& bytes,
                                                     std::stop_token stop) {
  if (!rows.empty()) require_plausible_ratio(rows.back());
  require_short(rows);
  texts_.clear();
  pairs_.clear();
  for (const RowRef& ref : rows) {
    if (ref.chunk->error(ref.row) != nullptr) continue;
    texts_.push_back(ref.chunk->texts[ref.row]);
    if (const auto pair = ref.chunk->pair(ref.row)) pairs_.push_back(*pair);
  }
  const Predictions p = score_(texts_, pairs_, stop);
  if (stop.stop_requested()) return std::nullopt;
  if (!pairs_.empty() && p.errors.size() == texts_.size())  // the model cannot score pairs at all
    for (const auto& [row, error] : p.errors)
      if (error.code() == ErrorCode::bad_model || error.code() == ErrorCode::usage) throw error;
  Done done;
  done.tokens = p.tokens;
  size_t text = 0, error = 0;
  for (const RowRef& ref : rows) {
    const bool readable = ref.chunk->error(ref.row) == nullptr;
    const size_t index = readable ? text++ : 0;
    while (error < p.errors.size() && readable && p.errors[error].first < index) ++error;
    const bool scored = readable && (error == p.errors.size() || p.errors[error].first != index);
    ++(scored ? done.good : done.bad);
    if (scored)
      put(bytes, ref, p, index);
    else
      rows_.null_row(bytes, *ref.chunk, ref.row);
  }
  return done;
}

void RowScorer::put(std::string& bytes, const RowRef& ref, const Predictions& p, size_t index) {
  if (!p.entities.empty())
    rows_.set_entities(0, p.entities[index]);
  else
    rows_.set_label(0, p.labels[index], p.label_scores[index], std::span(p.scores).subspan(index * p.width, p.width));
  rows_.row(bytes, *ref.chunk, ref.row);
}

}  // namespace brim::serve
