// SPDX-License-Identifier: Apache-2.0
// Results of a batch by the windows of texts packed into it. Does not own them.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "batch/packed_batch.h"
#include "engine/tokenized_texts.h"

namespace brim::engine {

// Scores of a batch, window by window.
class WindowResults {
 public:
  // `average`: `result` has one row per token, and put() stores the mean over each window.
  WindowResults(const batch::PackedBatch& batch, const float* result, size_t width, bool per_token,
                bool average = false)
      : batch_(batch), result_(result), width_(width), per_token_(per_token || average), average_(average) {}
  size_t size() const { return batch_.tickets.size(); }
  uint64_t ticket(size_t i) const { return batch_.tickets[i]; }
  // One row of `width` floats, or one row per token of the window.
  std::span<const float> scores(size_t i) const {
    if (!per_token_) return {result_ + i * width_, width_};
    const auto first = static_cast<size_t>(batch_.starts[i]), end = static_cast<size_t>(batch_.starts[i + 1]);
    return {result_ + first * width_, (end - first) * width_};
  }
  // Copies the scores to those of window `window` of `texts`: one row per window, or one per id.
  void put(size_t i, const TokenizedTexts& texts, size_t window, std::vector<float>& kept) const {
    const std::span<const float> from = scores(i);
    if (average_) return put_mean(from, texts.windows[window].prompt_tokens, kept.data() + window * width_);
    const size_t row = per_token_ ? texts.windows[window].begin : window;
    std::copy(from.begin(), from.end(), kept.begin() + static_cast<std::ptrdiff_t>(row * width_));
  }
  int64_t tokens() const { return batch_.tokens(); }
  int64_t tokens(size_t begin, size_t end) const { return batch_.starts[end] - batch_.starts[begin]; }

 private:
  // Skips the first `skip` tokens, like sentence-transformers without include_prompt; zeros if none are left.
  void put_mean(std::span<const float> rows, int32_t skip, float* mean) const {
    const size_t n = rows.size() / width_, first = std::min(static_cast<size_t>(skip), n);
    std::fill_n(mean, width_, 0.0f);
    for (size_t row = first; row < n; ++row)
      for (size_t k = 0; k < width_; ++k) mean[k] += rows[row * width_ + k];
    for (size_t k = 0; k < width_ && first < n; ++k) mean[k] /= static_cast<float>(n - first);
  }
  const batch::PackedBatch& batch_;
  const float* result_;
  size_t width_;
  bool per_token_, average_;
};

}  // namespace brim::engine
