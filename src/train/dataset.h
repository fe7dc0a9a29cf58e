// SPDX-License-Identifier: Apache-2.0
// Reads training rows, tokenizes them once on all cores and keeps them as flat arrays; unlabelled rows are for
// distillation. Token tasks come from CoNLL files: the first sub-word of each word gets its tag, the loss ignores the
// others. Does not cache tokens on disk (see token_cache.h).
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "text/tokenizer.h"
#include "train/settings.h"

namespace brim {
class ThreadPool;
}  // namespace brim

namespace brim::train {

// Rows under construction.
struct TrainRows {
  std::vector<int32_t> ids;          // tokens of all rows, except spilled ones
  std::vector<int64_t> begin = {0};  // row r is ids[begin[r]] … ids[begin[r+1]]
  // Sequence task: class of each row, kIgnoredTarget for rows of the other task, kNoLabel for rows without a label.
  std::vector<int32_t> label;
  std::vector<float> multi_label;    // multi-label: [rows, classes], -1 without a label; regression: [rows]
  std::vector<int32_t> token_label;  // token task: one per token, kIgnoredTarget if it has none
  std::vector<int32_t> file, line;   // source of each row: index into the files, line number from 1
  int64_t truncated = 0;
  int64_t skipped = 0;        // bad rows skipped (on_error skip)
  std::string first_skipped;  // error message of the first skipped row, with its location
  // Receives the tokens of finished rows, in order, to free memory; empty: keep all tokens.
  std::function<void(std::span<const int32_t>)> spill;
  int64_t spilled = 0;

  int64_t tokens() const { return spilled + static_cast<int64_t>(ids.size()); }
  void end_row();  // call after appending the row's ids
};

// On the CPU, where the memory limit covers the whole process, pages of mapped sets above this size are released after
// reading.
constexpr int64_t kMostMappedTokens = int64_t{32} << 20;

// A complete, read-only set: the same arrays in host memory or in the token cache's mapped file. The system pages a
// mapped file in and out on demand, so a set may be larger than memory.
struct TrainSet {
  std::span<const int32_t> ids;
  std::span<const int64_t> begin;
  std::span<const int32_t> label;
  std::span<const float> multi_label;
  std::span<const int32_t> token_label, file, line;
  int64_t truncated = 0, skipped = 0;
  std::string first_skipped;                 // empty if the set came from the token cache
  std::shared_ptr<const TrainRows> memory;   // owner of the viewed arrays:
  std::shared_ptr<const MappedFile> mapped;  // exactly one of the two is set

  TrainSet() = default;
  explicit TrainSet(TrainRows rows);
  TrainSet in_memory() const;   // itself, or a copy of a mapped set
  int64_t bytes() const;        // total size of all arrays
  int64_t unlabelled() const;   // number of rows without a label
  void release_pages() const {  // drops the resident pages of a large mapped set
    if (mapped && bytes() > kMostMappedTokens / 2) mapped->release();
  }

  int64_t rows() const { return static_cast<int64_t>(begin.size()) - 1; }
  int32_t length(int64_t row) const {
    return static_cast<int32_t>(begin[static_cast<size_t>(row) + 1] - begin[static_cast<size_t>(row)]);
  }
  int64_t tokens() const { return static_cast<int64_t>(ids.size()); }
  double tokens_per_row() const { return static_cast<double>(tokens()) / static_cast<double>(rows() > 0 ? rows() : 1); }
};

// Calls fn with each array (the same one of every given set), in storage order.
template <class Fn, class... Sets>
void each_array(Fn&& fn, Sets&... sets) {
  fn(sets.ids...);
  fn(sets.begin...);
  fn(sets.label...);
  fn(sets.multi_label...);
  fn(sets.token_label...);
  fn(sets.file...);
  fn(sets.line...);
}

struct LabelSets {
  std::vector<std::string> sequence, token;
  bool loosely = false;  // `sequence` comes from the model; files may use another case or indices
};

// The first few labels, for messages: there may be thousands.
std::string some_of(const std::vector<std::string>& labels);

// Labels found in the data, in the order for a new head: numbers by value, names alphabetically, tags with O first.
// `model_tags`, if not empty, are the names that numeric tags refer to.
LabelSets labels_of(const TrainSettings& settings, TrainTask task, const std::vector<std::string>& model_tags);
// Warning about labels that look like measurements (0.25, 1.5), since each becomes a class. Empty if none do.
std::string note_on_labels(const std::vector<std::string>& labels);
// Warnings about classes that are probably mistakes: spellings that differ only in case or spaces, placeholders such as
// NaN, classes with a single row, about one class per row. `rows`: training rows by class.
std::vector<std::string> notes_on_classes(const std::vector<std::string>& labels, const std::vector<int64_t>& rows);
std::vector<int64_t> rows_by_class(const TrainSet& set, size_t classes);  // multi-label rows count for each label

// Whether rows of these files may lack a label, as in training rows labelled by teachers.
bool takes_unlabelled(const TrainSettings& settings, const std::vector<std::string>& files);

// Reads and tokenizes block by block. A label that is not in `labels` is a bad_data error with file and line.
void collect_rows(TrainRows& rows, const std::vector<std::string>& files, const std::string& token_file,
                  const TrainSettings& settings, TrainTask task, const LabelSets& labels,
                  const text::Tokenizer& tokenizer, int64_t max_length, ThreadPool& pool);

// Reads the texts of the first `rows` rows of a set again, in row order. Training rows with teachers only. Throws
// bad_data if the files have changed.
void read_texts(
    const TrainSet& set, const TrainSettings& settings, int64_t rows,
    const std::function<void(int64_t row, std::string_view text, const std::optional<std::string_view>& pair)>& take);

// Splits the rows of a global batch into micro-batches of at most `tokens` tokens, longest rows first to fill them
// evenly. The sum of gradients does not depend on the order.
std::vector<std::vector<int64_t>> split_micro_batches(const TrainSet& set, const std::vector<int64_t>& rows,
                                                      int64_t tokens, int64_t sequences);

// Row order of an epoch: a permutation that depends only on seed and epoch.
std::vector<int64_t> epoch_order(int64_t rows, uint64_t seed, int64_t epoch);

}  // namespace brim::train
