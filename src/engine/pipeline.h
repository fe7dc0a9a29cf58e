// SPDX-License-Identifier: Apache-2.0
// Pipeline of score_rows(): read → tokenize (all cores) → pack → compute → collect → write. All stages overlap, are
// bounded and timed; results leave in input order regardless of batching. Used only in src/engine.
#pragma once
#include <vector>

#include "engine/engine.h"
#include "engine/score_rows.h"

namespace brim::engine {

// Models are engines, or null for VADER's rules, which run on the tokenizer threads.
RowReport run_pipeline(const std::vector<Engine*>& models, rows::RowSource& reader, const RowSink& sink,
                       const RowProgress& progress, const PipelineOptions& options);
PipelineStats run_pipeline(Engine& model, rows::RowSource& reader, const RowSink& sink, const RowProgress& progress,
                           const PipelineOptions& options);

}  // namespace brim::engine
