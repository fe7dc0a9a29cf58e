// SPDX-License-Identifier: Apache-2.0
// Scores the rows of a file or stream with open scorers, in one pass. Does not parse or write files: source and sink
// are the caller's.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "brim/brim.h"
#include "engine/label.h"
#include "engine/run_stats.h"
#include "rows/row_reader.h"
#include "text/words.h"

namespace brim::engine {

class LabelTask;

// Results of one model for a chunk of rows.
struct ChunkScores {
  int64_t width = 0;
  std::vector<float> scores;                  // [rows,width]: class scores, VADER's four values, or an embedding
  std::vector<Choice> choices;                // classifiers and rules: the label of each row
  std::vector<std::vector<Entity>> entities;  // token models
  std::vector<std::vector<int32_t>> tags;     // token models with requested tags: one class per word, -1 if none
  std::vector<uint8_t> truncated;             // per row: 1 if its end was cut off
};

// A chunk of rows with its results as passed to the sink: those of the first model and of any others.
struct ScoredChunk : ChunkScores {
  rows::RowChunk rows;
  std::vector<ChunkScores> others;
  // Rows without a result, by row; a row rejected by one model has no result from any
  std::vector<rows::RowError> errors;
  const Error* error(size_t row) const;
  ChunkScores& of(size_t model) { return model == 0 ? *this : others[model - 1]; }
  const ChunkScores& of(size_t model) const { return model == 0 ? *this : others[model - 1]; }
};

struct PipelineOptions {
  int tokenizer_threads = 0;               // 0: chosen by device
  std::optional<std::string_view> prompt;  // embedding models: replaces the default prompt
  const LabelTask* zero_shot = nullptr;    // replaces the model's labels
  // If positive: rows with equal texts are scored once, with at most this much host memory for texts and results. Not
  // for taggers and rules.
  int64_t repeated_bytes = 0;
  // Token models: words of each row, by row number over all inputs; if set, ChunkScores::tags is filled.
  const std::vector<std::vector<text::WordSpan>>* words = nullptr;
  // Set by a signal handler: batches the device has started are finished, rows up to the first one that is not scored
  // are returned, and the rest is dropped. Waits for a pipe or for capacity end within 0.2 s.
  const std::atomic<bool>* stop = nullptr;
};

struct RowReport {
  PipelineStats all;
  std::vector<PipelineStats> models;  // per scorer, with its own share of tokens and device time
};

using RowSink = std::function<void(ScoredChunk&)>;
using RowProgress = std::function<void(const PipelineStats&)>;

// Scores the rows of `source` and passes them to `sink`, which is called on one thread, in order. An error in any stage
// stops the others and is thrown here. Scorers on one device must have been opened together.
RowReport score_rows(std::span<Scorer* const> scorers, rows::RowSource& source, const RowSink& sink,
                     const RowProgress& progress, const PipelineOptions& options);
RowReport score_rows(Scorer& scorer, rows::RowSource& source, const RowSink& sink, const RowProgress& progress,
                     const PipelineOptions& options);

}  // namespace brim::engine
