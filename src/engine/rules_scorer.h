// SPDX-License-Identifier: Apache-2.0
// brim::Scorer for VADER's rules. Uses neither a device nor a scheduler.
#pragma once
#include <memory>

#include "brim/brim.h"

namespace brim::engine {

std::shared_ptr<Scorer> make_rules_scorer(const ScorerOptions& options);

}  // namespace brim::engine
