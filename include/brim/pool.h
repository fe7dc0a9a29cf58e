// SPDX-License-Identifier: Apache-2.0
// Several models on one device, within one memory limit.
//
//   const auto scorers = brim::open_together(std::vector<brim::ScorerOptions>{{.model = "a"}, {.model = "b"}});
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "brim/scorer.h"

namespace brim {

// Opens several models on one device under one limit, those of the first; they take turns by batches.
BRIM_API std::vector<std::shared_ptr<Scorer>> open_together(std::span<const ScorerOptions> options);
// Opens a model on the device queue of `other`, under the same limit; if it is not like one of the models there, its
// batches are as large as the queue supports. Opened separately if it requires another device. Other models are
// unloaded if memory is short, longest idle first; with `other_stays`, `other` is not unloaded, and does_not_fit is
// thrown instead.
BRIM_API std::shared_ptr<Scorer> open_beside(const Scorer& other, const ScorerOptions& options,
                                             bool other_stays = false);
// Planned memory these scorers hold now: memory shared by models on one device counts once, unloaded models do not
// count.
BRIM_API MemoryPlan plan_together(std::span<const std::shared_ptr<Scorer>> scorers);

}  // namespace brim
