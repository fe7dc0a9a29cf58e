// SPDX-License-Identifier: Apache-2.0
#include "requests.h"

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

// Collects results by row. They arrive on the device thread.
class Collector final : public Completion {
 public:
  Collector(ScoreFunction function, const Scorer& model, size_t rows) : function_(function), labels_(model.labels()) {
    const size_t width = model.score_names().size();
    p_.rows = rows;
    p_.width = width;
    p_.scores.assign(rows * width, 0);
    p_.truncated.assign(rows, 0);
    if (model.kind() == ModelKind::tagger) {
      p_.entities.resize(rows);
    } else {
      p_.labels.assign(rows, -1);
      p_.label_scores.assign(rows, 0);
    }
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
    p_.truncated[row] = prediction.truncated ? 1 : 0;
    if (!p_.entities.empty()) {
      p_.entities[row] = std::move(prediction.entities);
      return;
    }
    // The label was chosen from the logits, because sigmoids of large logits are all 1.
    const auto label = std::find(labels_.begin(), labels_.end(), prediction.label) - labels_.begin();
    if (function_ != ScoreFunction::own) {
      apply_function(function_, prediction.scores);
      prediction.score = prediction.scores[static_cast<size_t>(label)];
    }
    std::copy_n(prediction.scores.begin(), p_.width, p_.scores.begin() + static_cast<std::ptrdiff_t>(row * p_.width));
    p_.labels[row] = static_cast<int32_t>(label);
    p_.label_scores[row] = prediction.score;
  }

  const ScoreFunction function_;
  const std::vector<std::string>& labels_;  // the model outlives this
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

void apply_function(ScoreFunction function, std::span<float> scores) {
  if (function == ScoreFunction::sigmoid)
    for (float& score : scores) score = 1 / (1 + std::exp(-score));
  if (function != ScoreFunction::softmax || scores.empty()) return;
  const float largest = *std::max_element(scores.begin(), scores.end());
  float sum = 0;
  for (float& score : scores) sum += score = std::exp(score - largest);
  for (float& score : scores) score /= sum;
}

LongText long_text_of(const std::string& name) {
  if (name == "truncate") return LongText::truncate;
  if (name == "window-mean") return LongText::window_mean;
  if (name == "window-max") return LongText::window_max;
  if (name == "error") return LongText::error;
  throw Error(ErrorCode::usage, "`long_text=" + name + "` is unknown",
              {"use truncate, window-mean, window-max or error"});
}

Aggregation aggregation_of(const std::string& name) {
  if (name == "first") return Aggregation::first;
  if (name == "simple") return Aggregation::simple;
  if (name == "average") return Aggregation::average;
  if (name == "max") return Aggregation::max;
  if (name == "none") return Aggregation::none;
  throw Error(ErrorCode::usage, "`aggregation_strategy=" + name + "` is unknown",
              {"use none, simple, first, average or max"});
}

Request CallOptions::request(std::string_view text) const {
  Request request{.text = text};
  request.raw_scores = function != ScoreFunction::own;
  request.max_length = max_length;
  request.long_text = long_text;
  request.aggregation = aggregation;
  request.overlap = overlap;
  request.outside = outside;
  if (prompt) request.prompt = *prompt;
  return request;
}

Predictions score_requests(Scorer& model, const CallOptions& options, const Texts& texts, const Texts* pairs,
                           const std::stop_token& stop, const std::function<void(size_t)>& progress) {
  const std::span<const std::string_view> first = texts.views();
  auto collector = std::make_unique<Collector>(options.function, model, first.size());
  std::vector<Request> block;
  for (size_t row = 0; row < first.size();) {
    const size_t begin = row;
    block.clear();
    for (size_t bytes = 0; row < first.size() && block.size() < kBlockTexts && bytes < kBlockBytes; ++row) {
      Request request = options.request(first[row]);
      request.ticket = row;
      request.stop = stop;
      request.bulk = true;
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
