// SPDX-License-Identifier: Apache-2.0
// Stages of the pipeline that compute on one chunk of rows: tokenization for all models, and the merge of window
// results into scores, labels and entities. The flow of chunks through the stages is in pipeline.cc.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/engine.h"
#include "engine/repeated_rows.h"
#include "engine/score_rows.h"
#include "engine/tokenized_texts.h"

namespace brim::engine {

// A chunk's texts for one model. Unused for VADER.
struct ModelTexts {
  TokenizedTexts tokens;
  std::vector<text::Encoding> encodings;  // token models only
  std::vector<float> window_scores;       // sequence outputs: [windows,width]; token outputs: [ids,width]
  int64_t truncated = 0;

  void keep_first(size_t texts, size_t windows, size_t ids) {
    tokens.texts.resize(texts);
    tokens.windows.resize(windows);
    tokens.ids.resize(ids);
    if (encodings.size() > texts) encodings.resize(texts);
  }
};

// A chunk in the pipeline.
struct ChunkJob {
  uint64_t number = 0;
  ScoredChunk out;
  std::vector<size_t> row_of_text;  // row of each tokenized text
  std::vector<RowSlot> slots;       // one per row; empty if repeated rows are not looked for
  std::vector<ModelTexts> models;
  size_t windows_left = 0;  // over all models
};

// A model that computes on a device, and its index among all models.
struct ModelEngine {
  size_t model;
  Engine* engine;
};
// Thread-safe: its methods are called for different chunks at the same time.
class ChunkStages {
 public:
  // Models are engines, or null for VADER's rules. `models` and `options` must outlive this.
  ChunkStages(const std::vector<Engine*>& models, const PipelineOptions& options);
  const std::vector<ModelEngine>& encoders() const { return encoders_; }
  const LabelTask* zero_shot_of(const Engine& engine) const;
  void tokenize(ChunkJob& job) const;
  void finish(ChunkJob& job) const;  // after all its windows are computed

 private:
  std::optional<Error> tokenize_text(std::string_view text, std::optional<std::string_view> pair,
                                     std::vector<ModelTexts>& models) const;
  void merge(const ChunkJob& job, const Engine& engine, const ModelTexts& texts, ChunkScores& out) const;
  void merge_tokens(const ChunkJob& job, const Engine& engine, const ModelTexts& texts, ChunkScores& out) const;
  void find_entities(const ChunkJob& job, const Engine& engine, const ModelTexts& texts, ChunkScores& out) const;

  const std::vector<Engine*>& models_;
  const PipelineOptions& options_;
  std::vector<ModelEngine> encoders_;
};

}  // namespace brim::engine
