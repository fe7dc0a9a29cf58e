// SPDX-License-Identifier: Apache-2.0
// Access to the engines of open scorers, for reports and measurements of this program. Libraries and commands that only
// score texts use brim::Scorer.
#pragma once
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "brim/brim.h"
#include "engine/engine.h"
#include "engine/run_stats.h"
#include "engine/score_rows.h"

namespace brim::engine {

// Base of scorers that compute on a device.
class EngineScorer : public Scorer {
 public:
  EngineScorer(std::unique_ptr<Engine> engine, const ScorerOptions& options)
      : options_(options), engine_(std::move(engine)) {}
  Engine& engine() const { return *engine_; }
  const ScorerOptions& options() const { return options_; }

 protected:
  const ScorerOptions options_;
  std::unique_ptr<Engine> engine_;
};

// Engines of the scorers that compute on a device, in order; rules have none.
std::vector<Engine*> engines_of(std::span<Scorer* const> scorers);
// Throws usage for rules.
Engine& engine_of(const Scorer& scorer);

// The record of a run of one scorer; of several scorers, for all together. `counted`: see score_rows().
monitor::RunRecord record_of(const Scorer& scorer, const PipelineStats& counted);
monitor::RunRecord record_of(std::span<Scorer* const> scorers, const RowReport& counted);

}  // namespace brim::engine
