// SPDX-License-Identifier: Apache-2.0
// brim::Scorer over VADER's rules.
#pragma once
#include <memory>

#include "brim/brim.h"

namespace brim::engine {

std::shared_ptr<Scorer> make_rules_scorer(const ScorerOptions& options);

}  // namespace brim::engine
