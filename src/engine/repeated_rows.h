// SPDX-License-Identifier: Apache-2.0
// Equal texts in the rows of a run, so that each is scored once. The reader finds them and the writer copies their
// results, both in row order and without shared state: a slot that the reader reuses for another text is overwritten by
// the writer at the same row. Does not score texts.
#pragma once
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/score_rows.h"
#include "memory/ledger.h"

namespace brim::engine {

// Place of a row's result.
struct RowSlot {
  static constexpr uint32_t kNone = UINT32_MAX;
  uint32_t slot = kNone;  // none: the result is not kept
  bool repeats = false;   // an earlier row with the same text has it
};

// Bounded table of the texts of previous rows; the ones that were not seen again are replaced first.
class RepeatFinder {
 public:
  // `result_bytes`: kept per text by RepeatedResults. Memory is reserved in `ledger` as the table grows, up to
  // `most_bytes` or as much as is left; null: not counted there.
  RepeatFinder(int64_t most_bytes, int64_t result_bytes, memory::Ledger* ledger);
  std::vector<RowSlot> find(const rows::RowChunk& rows);
  int64_t bytes() const { return reserved_; }

 private:
  struct Entry {
    std::string text;
    bool kept = false, seen_again = false;
  };
  RowSlot find(std::string_view text);
  bool grow();
  bool replace_one();  // false if the table is empty

  int64_t most_bytes_;
  const int64_t entry_bytes_;
  memory::Ledger* const ledger_;
  memory::Reservation reservation_;
  int64_t reserved_ = 0, used_ = 0;
  std::deque<Entry> entries_;  // by slot; stable addresses
  std::vector<uint32_t> free_;
  std::unordered_map<std::string_view, uint32_t> slots_;  // views of entries_
  size_t hand_ = 0;                                       // next slot to examine for replacement
  std::string both_;                                      // scratch: text and second text
};

// Results by slot.
class RepeatedResults {
 public:
  // `widths`: floats per text of each model.
  explicit RepeatedResults(std::vector<size_t> widths);
  static int64_t bytes_per_text(const std::vector<size_t>& widths);

  // Keeps the results and errors of a scored chunk, and completes its rows that repeat others.
  void apply(ScoredChunk& chunk, const std::vector<RowSlot>& slots);
  int64_t rows() const { return rows_; }                                           // rows that repeated others
  int64_t truncated_rows(size_t model) const { return models_[model].truncated; }  // part of them

 private:
  struct Kept {
    Choice choice;
    uint8_t truncated = 0;
  };
  struct ModelResults {
    size_t width = 0;
    std::deque<float> scores;  // a deque grows without copies
    std::deque<Kept> kept;
    int64_t truncated = 0;
    void keep(const ChunkScores& from, size_t row, size_t slot);
    void copy(size_t slot, ChunkScores& to, size_t row);
  };
  std::vector<ModelResults> models_;
  std::unordered_map<uint32_t, Error> errors_;  // errors of texts without a result
  int64_t rows_ = 0;
};

}  // namespace brim::engine
