// SPDX-License-Identifier: Apache-2.0
// Scoring pipeline: read → tokenize (all cores) → pack → compute → collect → write. All stages overlap, are bounded and
// timed; results leave in input order regardless of batching. Does not parse or write files: source and sink are the
// caller's.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/run_stats.h"
#include "rows/row_reader.h"
#include "text/words.h"

namespace brim::engine {

// Results of one model for a chunk of rows.
struct ChunkScores {
  int64_t width = 0;
  std::vector<float> scores;                  // [rows,width]: class scores, VADER's four values, or an embedding
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
  // Token models: words of each row, by row number over all inputs; if set, ChunkScores::tags is filled.
  const std::vector<std::vector<text::WordSpan>>* words = nullptr;
  // Set by a signal handler: batches the device has started are finished, rows up to the first one that is not scored
  // are returned, and the rest is dropped. Waits for a pipe or for capacity end within 0.2 s.
  const std::atomic<bool>* stop = nullptr;
};

// Runs the rows of `reader` through `model` to `sink`, which is called on one thread, in order. An error in any stage
// stops the others and is thrown here.
PipelineStats run_pipeline(TextModel& model, rows::RowSource& reader, const std::function<void(ScoredChunk&)>& sink,
                           const std::function<void(const PipelineStats&)>& progress, const PipelineOptions& options);
// Same with several models in one pass over the rows. Models on one device must have been opened together.
PipelineStats run_pipeline(const std::vector<TextModel*>& models, rows::RowSource& reader,
                           const std::function<void(ScoredChunk&)>& sink,
                           const std::function<void(const PipelineStats&)>& progress, const PipelineOptions& options);

}  // namespace brim::engine
