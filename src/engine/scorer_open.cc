// SPDX-License-Identifier: Apache-2.0
// Opens scorers, one at a time or several under one memory limit.
#include <algorithm>

#include "base/error.h"
#include "brim/brim.h"
#include "engine/encoder_scorer.h"
#include "engine/engine.h"
#include "engine/rules_scorer.h"
#include "engine/scorer_access.h"
#include "hub/model_dir.h"
#include "memory/ledger.h"

namespace brim {

std::vector<std::pair<std::string, int64_t>> engine::bytes_by_purpose(const memory::TagBytes& bytes) {
  std::vector<std::pair<std::string, int64_t>> all;
  for (size_t tag = 0; tag < memory::kTagCount; ++tag)
    if (const int64_t n = bytes[static_cast<memory::Tag>(tag)]; n > 0)
      all.emplace_back(tag_name(static_cast<memory::Tag>(tag)), n);
  return all;
}

namespace {

engine::EngineOptions engine_options(const ScorerOptions& o, const hub::ModelSearchPath& search_path) {
  engine::EngineOptions encoder = engine::engine_options(o);
  encoder.model_dir = hub::resolve_model(o.model.empty() ? hub::default_model() : o.model, search_path);
  if (!o.adapter.empty()) encoder.adapter_dir = hub::resolve_model(o.adapter, search_path);
  if (!o.tagger.empty()) encoder.tagger_dir = hub::resolve_model(o.tagger, search_path);
  return encoder;
}

}  // namespace

std::shared_ptr<Scorer> open_beside(const Scorer& other, const ScorerOptions& options, bool other_stays) {
  const auto* beside = dynamic_cast<const engine::EngineScorer*>(&other);
  if (beside == nullptr || hub::names_vader(options.model)) return Scorer::open(options);
  if (options.device != beside->options().device || options.threads != beside->options().threads)
    return Scorer::open(options);
  const engine::EngineOptions encoder = engine_options(options, hub::model_search_path(hub::model_roots()));
  return engine::make_encoder_scorer(engine::Engine::open_beside(beside->engine(), encoder, other_stays), options);
}

MemoryPlan plan_together(std::span<const std::shared_ptr<Scorer>> scorers) {
  MemoryPlan all;
  memory::TagBytes bytes;
  std::vector<const memory::Ledger*> seen;
  for (const std::shared_ptr<Scorer>& scorer : scorers) {
    const auto* encoder = dynamic_cast<const engine::EngineScorer*>(scorer.get());
    if (encoder == nullptr) continue;  // rules hold no device memory
    const memory::Ledger* ledger = &memory::Ledger::of(encoder->engine().device());
    if (std::find(seen.begin(), seen.end(), ledger) != seen.end()) continue;
    seen.push_back(ledger);
    if (ledger->limited()) all.limit_bytes = std::max(all.limit_bytes, ledger->limit_bytes());
    for (const memory::LedgerEntry& entry : ledger->entries()) bytes[entry.tag] += entry.bytes;
  }
  all.bytes = engine::bytes_by_purpose(bytes);
  all.peak_bytes = bytes.total();
  return all;
}

std::shared_ptr<Scorer> Scorer::open(const ScorerOptions& options) { return brim::open_together({&options, 1})[0]; }

std::vector<std::shared_ptr<Scorer>> open_together(std::span<const ScorerOptions> options) {
  const hub::ModelSearchPath search_path = hub::model_search_path(hub::model_roots());
  std::vector<std::shared_ptr<Scorer>> scorers(options.size());
  std::vector<engine::EngineOptions> engines;
  std::vector<size_t> encoders;
  for (size_t i = 0; i < options.size(); ++i) {
    const ScorerOptions& o = options[i];
    const std::string name = o.model.empty() ? hub::default_model() : o.model;
    if (hub::names_vader(name)) {
      if (!o.adapter.empty()) fail(ErrorCode::usage, "`model=vader`: adapters require a model directory");
      if (o.zero_shot) fail(ErrorCode::usage, "`model=vader`: zero-shot labels require an NLI model");
      if (o.entities) fail(ErrorCode::usage, "`model=vader`: `entities` requires a GLiNER model");
      if (o.pooling) fail(ErrorCode::usage, "`model=vader`: embeddings are not supported; use a model directory");
      scorers[i] = engine::make_rules_scorer(o);
      continue;
    }
    encoders.push_back(i);
    engines.push_back(engine_options(o, search_path));
  }
  std::vector<std::unique_ptr<engine::Engine>> opened;
  if (engines.size() == 1)
    opened.push_back(engine::Engine::open(engines[0]));
  else
    opened =
        engine::Engine::open_together(engines, options[0].in_turn ? plan::Residency::in_turn : plan::Residency::all);
  for (size_t e = 0; e < encoders.size(); ++e)
    scorers[encoders[e]] = engine::make_encoder_scorer(std::move(opened[e]), options[encoders[e]]);
  return scorers;
}

}  // namespace brim
