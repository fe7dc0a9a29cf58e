// SPDX-License-Identifier: Apache-2.0
// Rows, tokenized once on all cores and kept as flat arrays; those without a label are for teachers. Token tasks come
// from CoNLL files: the first sub-word of each word carries its tag, the others are ignored by the loss.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "text/tokenizer.h"
#include "train/settings.h"

namespace brim {
class ThreadPool;
}  // namespace brim

namespace brim::train {

// Rows while they are collected.
struct TrainRows {
  std::vector<int32_t> ids;          // all rows' tokens, without those that were spilled
  std::vector<int64_t> begin = {0};  // row r is ids[begin[r]] … ids[begin[r+1]]
  // Sequence task: class of each row, kIgnoredTarget for rows of the other task, kNoLabel for rows without a label.
  std::vector<int32_t> label;
  std::vector<float> multi_label;    // multi-label: [rows, classes], -1 without a label; regression: [rows]
  std::vector<int32_t> token_label;  // token task: one a token, kIgnoredTarget where there is none
  std::vector<int32_t> file, line;   // where each row was written: index into the files, line from 1
  int64_t truncated = 0;
  int64_t skipped = 0;        // bad rows left out (on_error skip)
  std::string first_skipped;  // what was wrong with the first of them, and where
  // Takes finished rows' tokens off memory's hands, in order; empty: they all stay.
  std::function<void(std::span<const int32_t>)> spill;
  int64_t spilled = 0;

  int64_t tokens() const { return spilled + static_cast<int64_t>(ids.size()); }
  void end_row();  // its ids were appended
};

// On the CPU, where the limit is for the whole process, pages of a mapped set beyond this are given back as they were
// read.
constexpr int64_t kMostMappedTokens = int64_t{32} << 20;

// A whole set, read only: the same arrays in host memory, or in the token cache's mapped file, whose pages the system
// reads and drops as it needs, so that a set may be larger than memory.
struct TrainSet {
  std::span<const int32_t> ids;
  std::span<const int64_t> begin;
  std::span<const int32_t> label;
  std::span<const float> multi_label;
  std::span<const int32_t> token_label, file, line;
  int64_t truncated = 0, skipped = 0;
  std::string first_skipped;                 // empty where the set came from the token cache
  std::shared_ptr<const TrainRows> memory;   // what the views point into:
  std::shared_ptr<const MappedFile> mapped;  // one of the two

  TrainSet() = default;
  explicit TrainSet(TrainRows rows);
  TrainSet in_memory() const;   // itself, or a copy of what is mapped
  int64_t bytes() const;        // of all arrays
  int64_t unlabelled() const;   // rows
  void release_pages() const {  // what was read of a large mapped set
    if (mapped && bytes() > kMostMappedTokens / 2) mapped->release();
  }

  int64_t rows() const { return static_cast<int64_t>(begin.size()) - 1; }
  int32_t length(int64_t row) const {
    return static_cast<int32_t>(begin[static_cast<size_t>(row) + 1] - begin[static_cast<size_t>(row)]);
  }
  int64_t tokens() const { return static_cast<int64_t>(ids.size()); }
  double tokens_per_row() const { return static_cast<double>(tokens()) / static_cast<double>(rows() > 0 ? rows() : 1); }
};

// Calls fn with each array, the same of every set given, in the order they are stored.
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
  bool loosely = false;  // `sequence` is the model's, and files may write it in another case or by number
};

// The first of them, for messages: there may be thousands.
std::string some_of(const std::vector<std::string>& labels);

// Labels of the data, in the order a new head gets: numbers by value, names by alphabet; tags with O first.
// `model_tags`, the model's where it has any, are what numbers in the place of tags stand for.
LabelSets labels_of(const TrainSettings& settings, TrainTask task, const std::vector<std::string>& model_tags);
// A line about labels that look like measurements (0.25, 1.5): each becomes a class. Empty where they do not.
std::string note_on_labels(const std::vector<std::string>& labels);

// Whether rows of these files may lack a label: training rows that teachers judge.
bool takes_unlabelled(const TrainSettings& settings, const std::vector<std::string>& files);

// Reads and tokenizes block by block. `labels` says which names are known; a label outside it is bad_data naming file
// and line.
void collect_rows(TrainRows& rows, const std::vector<std::string>& files, const std::string& token_file,
                  const TrainSettings& settings, TrainTask task, const LabelSets& labels,
                  const text::Tokenizer& tokenizer, int64_t max_length, ThreadPool& pool);

// A global batch's rows as micro-batches of at most `tokens` tokens: longest first, so that they fill evenly. The sum
// of gradients does not depend on the order.
std::vector<std::vector<int64_t>> split_micro_batches(const TrainSet& set, const std::vector<int64_t>& rows,
                                                      int64_t tokens, int64_t sequences);

// Rows of an epoch in the order they are drawn: a permutation that depends on seed and epoch alone.
std::vector<int64_t> epoch_order(int64_t rows, uint64_t seed, int64_t epoch);

}  // namespace brim::train
