// SPDX-License-Identifier: Apache-2.0
// brim::Scorer for an Engine, and the parts of it that opening needs.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "memory/tag.h"

namespace brim::engine {

std::shared_ptr<Scorer> make_encoder_scorer(std::unique_ptr<Engine> engine, const ScorerOptions& options);

// Bytes of a MemoryPlan, without empty tags.
std::vector<std::pair<std::string, int64_t>> bytes_by_purpose(const memory::TagBytes& bytes);

}  // namespace brim::engine
