// SPDX-License-Identifier: Apache-2.0
#include "engine/scorer_access.h"

#include <algorithm>

#include "base/error.h"
#include "engine/pipeline.h"
#include "monitor/host.h"

namespace brim::engine {

std::vector<Engine*> engines_of(std::span<Scorer* const> scorers) {
  std::vector<Engine*> engines;
  for (Scorer* scorer : scorers)
    if (scorer->kind() != ModelKind::rules) engines.push_back(&engine_of(*scorer));
  return engines;
}

Engine& engine_of(const Scorer& scorer) {
  const auto* const found = dynamic_cast<const EngineScorer*>(&scorer);
  if (found == nullptr) fail(ErrorCode::usage, "{}: has no weights; choose a model directory", scorer.model());
  return found->engine();
}

monitor::RunRecord record_of(const Scorer& scorer, const PipelineStats& counted) {
  monitor::RunRecord r;
  if (scorer.kind() == ModelKind::rules) {
    r = record_of(nullptr, nullptr, counted);
    r.device = scorer.device();
    r.stats.tokens = 0;
    r.planned_bytes = 0;
    r.peak_bytes = monitor::peak_resident_bytes();
  } else {
    const Engine& engine = engine_of(scorer);
    r = record_of(&engine.shape(), &engine.plan(), counted);
    r.set_device(engine.device());
    r.threads = r.on_card ? 0 : engine.plan().device.threads;
    r.peak_bytes = held_bytes(engine.device());
  }
  r.model = scorer.model();
  r.precision = scorer.precision();
  r.precision_reason = scorer.precision_reason();
  return r;
}

monitor::RunRecord record_of(std::span<Scorer* const> scorers, const RowReport& counted) {
  const std::vector<Engine*> engines = engines_of(scorers);
  if (scorers.size() == 1 || engines.empty()) return record_of(*scorers[0], counted.models[0]);
  monitor::RunRecord all = record_of(&engines[0]->shape(), &engines[0]->plan(), counted.all);
  all.set_device(engines[0]->device());
  all.peak_bytes = held_bytes(engines[0]->device());
  all.token_budget.reset();  // differs per model
  all.mfu = 0;
  std::vector<const plan::Plan*> plans;
  for (size_t m = 0; m < scorers.size(); ++m) {
    if (scorers[m]->kind() == ModelKind::rules) continue;
    const Engine& engine = engine_of(*scorers[m]);
    plans.push_back(&engine.plan());
    all.limit_bytes = std::max(*all.limit_bytes, engine.plan().limit_bytes);
    const std::optional<double> mfu = record_of(&engine.shape(), &engine.plan(), counted.models[m]).mfu;
    all.mfu = all.mfu && mfu ? std::optional(*all.mfu + *mfu) : std::nullopt;
  }
  all.planned_bytes = planned_bytes(plans) + counted.all.repeated_bytes;
  return all;
}

RowReport score_rows(std::span<Scorer* const> scorers, rows::RowSource& source, const RowSink& sink,
                     const RowProgress& progress, const PipelineOptions& options) {
  std::vector<Engine*> models;
  for (const Scorer* scorer : scorers)
    models.push_back(scorer->kind() == ModelKind::rules ? nullptr : &engine_of(*scorer));
  return run_pipeline(models, source, sink, progress, options);
}

RowReport score_rows(Scorer& scorer, rows::RowSource& source, const RowSink& sink, const RowProgress& progress,
                     const PipelineOptions& options) {
  Scorer* const one[] = {&scorer};
  return score_rows(one, source, sink, progress, options);
}

}  // namespace brim::engine
