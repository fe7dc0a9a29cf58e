// SPDX-License-Identifier: Apache-2.0
// The scoring pipeline: read → tokenize (all cores) → pack → compute → collect → write, every stage overlapped, bounded
// and timed. Chunks of rows travel through it; results leave in the order of the input, whatever the batches were.
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

// What one model gave for a chunk of rows.
struct ChunkScores {
  int64_t width = 0;
  std::vector<float> scores;                  // [rows,width]: class scores, VADER's four values, or an embedding
  std::vector<std::vector<Entity>> entities;  // token models
  std::vector<std::vector<int32_t>> tags;     // token models asked for tags: one class per word, -1 without one
  std::vector<uint8_t> truncated;             // per row: 1 where its end was not read
};

// A chunk of rows with its results, as the sink gets it: those of the first model and, where there are more, of the
// others.
struct ScoredChunk : ChunkScores {
  rows::RowChunk rows;
  std::vector<ChunkScores> others;
  std::vector<rows::RowError> errors;  // rows without a result, by row; what one model refuses has none of any
  const Error* error(size_t row) const;
  ChunkScores& of(size_t model) { return model == 0 ? *this : others[model - 1]; }
  const ChunkScores& of(size_t model) const { return model == 0 ? *this : others[model - 1]; }
};

struct PipelineOptions {
  int tokenizer_threads = 0;               // 0: by device
  std::optional<std::string_view> prompt;  // of embedding models, instead of their default one
  // Token models: the words of each row, by its number over all inputs; ChunkScores::tags is then filled.
  const std::vector<std::vector<text::WordSpan>>* words = nullptr;
  // Set by a signal: the batches the device has begun are finished, rows up to the first one that is not scored are
  // handed out, the rest is dropped. Waiting for a pipe or for room ends within a fifth of a second.
  const std::atomic<bool>* stop = nullptr;
};

// Rows of `reader` through `model` to `sink`, which runs on one thread, in order. An error in any stage
// stops the others and is thrown here.
PipelineStats run_pipeline(TextModel& model, rows::RowSource& reader, const std::function<void(ScoredChunk&)>& sink,
                           const std::function<void(const PipelineStats&)>& progress, const PipelineOptions& options);
// The same with several models in one pass over the rows. Those of one device were opened together.
PipelineStats run_pipeline(const std::vector<TextModel*>& models, rows::RowSource& reader,
                           const std::function<void(ScoredChunk&)>& sink,
                           const std::function<void(const PipelineStats&)>& progress, const PipelineOptions& options);

}  // namespace brim::engine
