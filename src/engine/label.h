// SPDX-License-Identifier: Apache-2.0
// Which label a text gets: decided here and nowhere else.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace brim::engine {

struct Choice {
  int32_t label = -1;  // place among the model's labels
  float score = 0;
};

// A classifier's: the largest, the first of equals.
inline Choice choose_label(std::span<const float> scores) {
  const auto best = std::max_element(scores.begin(), scores.end());
  return best == scores.end() ? Choice{} : Choice{static_cast<int32_t>(best - scores.begin()), *best};
}

// Multi-label models: whether a label is given.
inline bool is_given(float score) { return score > 0.5f; }

// VADER's rules give four values per text: neg, neu, pos and compound, which decides.
constexpr int64_t kVaderWidth = 4;
const std::vector<std::string>& vader_labels();       // negative, neutral, positive
const std::vector<std::string>& vader_score_names();  // neg, neu, pos, compound
void score_by_vader(std::string_view text, float* four);
Choice choose_vader_label(const float* four);

}  // namespace brim::engine
