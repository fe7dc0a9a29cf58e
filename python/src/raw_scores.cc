// SPDX-License-Identifier: Apache-2.0
#include "raw_scores.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace brim::python {
namespace {

// Texts per submission, and the limit of waiting texts: enough to fill batches, bounded in memory.
constexpr size_t kBlockTexts = 512, kBlockBytes = 1 << 20, kMaxWaiting = 4 * kBlockTexts;

void apply_function(ScoreFunction function, std::span<float> scores) {
  if (function == ScoreFunction::sigmoid)
    for (float& score : scores) score = 1 / (1 + std::exp(-score));
  if (function != ScoreFunction::softmax || scores.empty()) return;
  const float largest = *std::max_element(scores.begin(), scores.end());
  float sum = 0;
  for (float& score : scores) sum += score = std::exp(score - largest);
  for (float& score : scores) score /= sum;
}

// Collects results by row. They arrive on the device thread.
class Collector final : public Completion {
 public:
  Collector(ScoreFunction function, size_t rows, size_t width) : function_(function) {
    p_.rows = rows;
    p_.width = width;
    p_.labels.assign(rows, -1);
    p_.scores.assign(rows * width, 0);
    p_.label_scores.assign(rows, 0);
    p_.truncated.assign(rows, 0);
  }

  void done(std::span<Answer> answers) noexcept override {
    const std::lock_guard lock(mutex_);
    for (Answer& answer : answers) put(static_cast<size_t>(answer.ticket), answer.prediction);
    done_ += answers.size();
    changed_.notify_all();
  }

  // Waits until at most `most` of the first `submitted` texts have no result.
  size_t wait(size_t submitted, size_t most) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return submitted - done_ <= most; });
    return done_;
  }

  Predictions take() {
    std::sort(p_.errors.begin(), p_.errors.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    return std::move(p_);
  }

 private:
  void put(size_t row, Prediction& prediction) {
    p_.tokens += prediction.tokens;
    if (prediction.error) {
      p_.errors.emplace_back(row, std::move(*prediction.error));
      return;
    }
    // The label is chosen from the logits, because sigmoids of large logits are all 1.
    const auto best = std::max_element(prediction.scores.begin(), prediction.scores.end());
    const auto label = best - prediction.scores.begin();
    apply_function(function_, prediction.scores);
    std::copy_n(prediction.scores.begin(), p_.width, p_.scores.begin() + static_cast<std::ptrdiff_t>(row * p_.width));
    p_.labels[row] = static_cast<int32_t>(label);
    p_.label_scores[row] = prediction.scores[static_cast<size_t>(label)];
    p_.truncated[row] = prediction.truncated ? 1 : 0;
  }

  const ScoreFunction function_;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t done_ = 0;
  Predictions p_;
};

}  // namespace

ScoreFunction score_function_of(const std::string& name) {
  if (name.empty()) return ScoreFunction::own;
  if (name == "none") return ScoreFunction::none;
  if (name == "softmax") return ScoreFunction::softmax;
  if (name == "sigmoid") return ScoreFunction::sigmoid;
  throw Error(ErrorCode::usage, "`function_to_apply=" + name + "` is unknown", {"use sigmoid, softmax or none"});
}

Predictions score_raw(Scorer& model, ScoreFunction function, const Texts& texts, const Texts* pairs,
                      const std::stop_token& stop, const std::function<void(size_t)>& progress) {
  const std::span<const std::string_view> first = texts.views();
  auto collector = std::make_unique<Collector>(function, first.size(), model.score_names().size());
  std::vector<Request> block;
  for (size_t row = 0; row < first.size();) {
    const size_t begin = row;
    block.clear();
    for (size_t bytes = 0; row < first.size() && block.size() < kBlockTexts && bytes < kBlockBytes; ++row) {
      Request request{.text = first[row], .ticket = row, .stop = stop, .raw_scores = true, .bulk = true};
      if (pairs != nullptr) request.pair = pairs->views()[row];
      bytes += first[row].size() + request.pair.value_or("").size();
      block.push_back(request);
    }
    try {
      model.submit(block, *collector);
    } catch (...) {
      // Earlier blocks may still complete later, or never in a child of fork(), which has no device thread.
      if (begin > 0) (void)collector.release();
      throw;
    }
    const size_t done = collector->wait(row, kMaxWaiting);
    if (progress) progress(done);
  }
  collector->wait(first.size(), 0);
  if (progress && !first.empty()) progress(first.size());
  return collector->take();
}

}  // namespace brim::python
