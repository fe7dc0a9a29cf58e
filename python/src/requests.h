// SPDX-License-Identifier: Apache-2.0
// Texts scored with options other than the scorer's: a function of the outputs, a length, an aggregation. Does not
// handle embeddings.
#pragma once
#include <functional>
#include <optional>
#include <stop_token>
#include <string>

#include "brim/brim.h"
#include "texts.h"

namespace brim::python {

enum class ScoreFunction : uint8_t { own, none, softmax, sigmoid };

// An empty name selects the model's own function. Throws usage for unknown names.
ScoreFunction score_function_of(const std::string& name);
// Replaces logits by scores.
void apply_function(ScoreFunction function, std::span<float> scores);

LongText long_text_of(const std::string& name);
Aggregation aggregation_of(const std::string& name);

// Options of the texts of one call; the default values select those of the scorer.
struct CallOptions {
  ScoreFunction function = ScoreFunction::own;
  int64_t max_length = 0;
  std::optional<LongText> long_text = {};
  std::optional<Aggregation> aggregation = {};
  int32_t overlap = -1;
  bool outside = false;
  std::optional<std::string> prompt = {};  // embedding models only

  bool any() const {
    return function != ScoreFunction::own || max_length > 0 || long_text || aggregation || overlap >= 0 || outside ||
           prompt;
  }
  // A request for one text. Functions other than the model's own need its logits.
  Request request(std::string_view text) const;
};

// Like Scorer::score(), or score_pairs() if `pairs` is not null. The scorer must be opened with `raw_scores`.
Predictions score_requests(Scorer& model, const CallOptions& options, const Texts& texts, const Texts* pairs,
                           const std::stop_token& stop, const std::function<void(size_t)>& progress);

}  // namespace brim::python
