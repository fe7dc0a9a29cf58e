// SPDX-License-Identifier: Apache-2.0
#include "engine/rules_scorer.h"

#include <atomic>
#include <chrono>

#include "base/clock.h"
#include "base/utf8.h"
#include "engine/label.h"
#include "engine/score_columns.h"

namespace brim::engine {
namespace {

// Applying the rules is cheaper than a thread switch: texts are scored on the calling thread.
class RulesScorer final : public Scorer {
 public:
  explicit RulesScorer(const ScorerOptions& options) : threads_(options.threads) {}
  ModelKind kind() const override { return ModelKind::rules; }
  std::string model() const override { return "vader"; }
  std::optional<Error> why_no_pairs() const override {
    return Error(ErrorCode::usage, "VADER's rules do not support pairs", {"use a model directory"});
  }
  const std::vector<std::string>& labels() const override { return vader_labels(); }
  const std::vector<std::string>& score_names() const override { return vader_score_names(); }
  std::string device() const override { return "cpu"; }
  std::string precision() const override { return "exact"; }
  MemoryPlan plan() const override { return {}; }
  int64_t max_length() const override { return 0; }
  ScorerLoad load() const override { return {}; }
  std::vector<TextToken> tokenize(std::string_view) const override { return {}; }

  void submit(std::span<const Request> requests, Completion& completion) override {
    std::vector<Answer> answers;
    answers.reserve(requests.size());
    for (const Request& request : requests) answers.push_back({request.ticket, predict(request)});
    if (!answers.empty()) completion.done(answers);
  }

  Predictions score(std::span<const std::string_view> texts, std::stop_token stop,
                    const std::function<void(size_t)>& progress) override {
    if (closed_) fail(ErrorCode::cancelled, "the scorer was closed");
    Columns columns(texts.size(), kVaderWidth, true, false);
    if (!are_few(texts)) return score_many(nullptr, threads_, texts, {}, stop, progress, columns);
    Predictions& p = columns.predictions();
    size_t done = 0;
    for (; done < texts.size() && !stop.stop_requested(); ++done) {
      if (!is_valid_utf8(texts[done])) {
        p.errors.emplace_back(done, not_utf8());
        continue;
      }
      score_by_vader(texts[done], &p.scores[done * kVaderWidth]);
      choose(p, done);
    }
    if (progress && done > 0) progress(done);
    return columns.finish(done);
  }

  void close() override { closed_ = true; }

 private:
  Prediction predict(const Request& request) const {
    Prediction p;
    if (closed_)
      p.error.emplace(ErrorCode::cancelled, "the scorer was closed");
    else if (request.stop.stop_requested())
      p.error.emplace(ErrorCode::cancelled, "cancelled by the caller");
    else if (request.deadline && *request.deadline <= std::chrono::steady_clock::now())
      p.error.emplace(ErrorCode::timed_out, "the deadline has passed");
    else if (!is_valid_utf8(request.text))
      p.error = not_utf8();
    else if (!request.ids.empty())
      p.error.emplace(ErrorCode::usage, "VADER's rules do not support token ids");
    else if (request.pair)
      p.error = why_no_pairs();
    if (!p.error) {
      const int64_t since = now_ns();
      p.scores.resize(kVaderWidth);
      score_by_vader(request.text, p.scores.data());
      const Choice choice = choose_vader_label(p.scores.data());
      p.label = vader_labels()[static_cast<size_t>(choice.label)];
      p.score = choice.score;
      p.timing.computed = seconds_since(since);
    }
    return p;
  }

  static void choose(Predictions& p, size_t row) {
    const Choice choice = choose_vader_label(&p.scores[row * kVaderWidth]);
    p.labels[row] = choice.label;
    p.label_scores[row] = choice.score;
  }

  const int threads_;
  std::atomic<bool> closed_{false};
};

}  // namespace

std::shared_ptr<Scorer> make_rules_scorer(const ScorerOptions& options) {
  if (!options.labels.empty()) fail(ErrorCode::usage, "`labels`: not supported for VADER's rules");
  return std::make_shared<RulesScorer>(options);
}

}  // namespace brim::engine
