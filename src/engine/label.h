// SPDX-License-Identifier: Apache-2.0
// Which label a text gets: decided here and nowhere else.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
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

inline bool all_finite(std::span<const float> values) {
  uint32_t largest = 0;  // as bits without the sign, which order like the values; infinities and NaNs come last
  for (const float value : values) largest = std::max(largest, std::bit_cast<uint32_t>(value) & 0x7FFFFFFF);
  return largest < 0x7F800000;
}

// Scales a vector to length 1.
inline void normalize(std::span<float> vector) {
  double squares = 0;
  for (const float value : vector) squares += static_cast<double>(value) * value;
  const auto scale = static_cast<float>(1 / std::max(1e-12, std::sqrt(squares)));
  for (float& value : vector) value *= scale;
}

// A classifier's: the largest, the first of equals.
inline Choice choose_label(std::span<const float> scores) {
  const auto best = std::max_element(scores.begin(), scores.end());
  return best == scores.end() ? Choice{} : Choice{static_cast<int32_t>(best - scores.begin()), *best};
}

// What a head gives to scores: shares that sum to 1; each by itself where labels exclude nothing or there is but one.
inline void scores_of_logits(std::span<const float> logits, bool multi_label, float* scores) {
  if (multi_label || logits.size() == 1) {
    for (size_t k = 0; k < logits.size(); ++k) scores[k] = 1 / (1 + std::exp(-logits[k]));
    return;
  }
  const float most = logits.empty() ? 0 : *std::max_element(logits.begin(), logits.end());
  float sum = 0;
  for (size_t k = 0; k < logits.size(); ++k) sum += scores[k] = std::exp(logits[k] - most);
  for (size_t k = 0; k < logits.size(); ++k) scores[k] /= sum;
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
