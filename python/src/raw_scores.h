// SPDX-License-Identifier: Apache-2.0
// Classifier scores with a function other than the model's own: softmax, sigmoid, or none for logits. Does not handle
// embeddings or entities.
#pragma once
#include <functional>
#include <stop_token>
#include <string>

#include "brim/brim.h"
#include "texts.h"

namespace brim::python {

enum class ScoreFunction : uint8_t { own, none, softmax, sigmoid };

// An empty name selects the model's own function. Throws usage for unknown names.
ScoreFunction score_function_of(const std::string& name);

// Like Scorer::score(), or score_pairs() if `pairs` is not null. The scorer must be opened with `raw_scores`.
Predictions score_raw(Scorer& model, ScoreFunction function, const Texts& texts, const Texts* pairs,
                      const std::stop_token& stop, const std::function<void(size_t)>& progress);

}  // namespace brim::python
