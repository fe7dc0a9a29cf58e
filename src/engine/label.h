// SPDX-License-Identifier: Apache-2.0
// Chooses the label of a text from its scores; no other file does. Does not compute scores.
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
  int32_t label = -1;  // index into the model's labels
  float score = 0;
};

inline bool all_finite(std::span<const float> values) {
  uint32_t largest = 0;  // bit pattern without the sign, which orders like the values; infinities and NaNs come last
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

// Classifiers: the largest score; the first one of equal scores.
inline Choice choose_label(std::span<const float> scores) {
  const auto best = std::max_element(scores.begin(), scores.end());
  return best == scores.end() ? Choice{} : Choice{static_cast<int32_t>(best - scores.begin()), *best};
}

// Activation of a head: softmax, or a sigmoid per label for multi-label models and single labels.
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

// Multi-label models: whether a label is assigned.
inline bool is_given(float score) { return score > 0.5f; }

// VADER gives four values per text: neg, neu, pos and compound; compound determines the label.
constexpr int64_t kVaderWidth = 4;
const std::vector<std::string>& vader_labels();       // negative, neutral, positive
const std::vector<std::string>& vader_score_names();  // neg, neu, pos, compound
void score_by_vader(std::string_view text, float* four);
Choice choose_vader_label(const float* four);

}  // namespace brim::engine
