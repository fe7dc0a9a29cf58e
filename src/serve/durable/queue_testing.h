// SPDX-License-Identifier: Apache-2.0
// Queues for tests: a scorer with known scores and a clock that the test sets.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/test_files.h"
#include "serve/durable/queues.h"

namespace brim::serve {

// The score of a text is its length; texts that start with "bad" have none.
class LengthScorer : public QueueScorer {
 public:
  std::vector<QueueScore> score(const QueueRules&, std::span<const QueueItem> items) override {
    if (broken) fail(ErrorCode::device_lost, "the card is gone");
    std::vector<QueueScore> all;
    for (const QueueItem& item : items) {
      seen.push_back(item.text);
      labels.push_back(labels_text(item));
      QueueScore score;
      score.model = item.source.empty() ? "small" : "large";
      score.reason = item.source.empty() ? "default" : "source";
      if (item.source == "reuters") score.instead_of = "largest";
      score.label = item.text.size() % 2 == 0 ? "positive" : "negative";
      score.score = 0.5;
      score.compound = static_cast<float>(item.text.size()) / 100;
      if (item.text.starts_with("bad")) score.error = "not a text";
      all.push_back(score);
    }
    return all;
  }
  bool broken = false;
  std::vector<std::string> seen, labels;
};

inline Queue::Clock fixed_clock(int64_t ms) {
  return {[ms] { return ms; }, [ms] { return ms; }};
}

struct QueueBench {
  explicit QueueBench(QueueRules rules = {}) : rules_(std::move(rules)) {
    rules_.name = "news";
    open();
  }
  void open() {
    queue.reset();
    queue = std::make_unique<Queue>(rules_, dir / "news.journal", scorer, clock());
  }
  Queue::Clock clock() {
    return {[this] { return now; }, [this] { return now - set_by; }};
  }
  // Changes the system clock, as an operator or NTP would, but not the steady clock.
  void set_clock(int64_t by) {
    now += by;
    set_by += by;
  }
  QueueAnswer put(const std::string& text, const std::string& key = "", const QueueJson& item = QueueJson::object()) {
    return queue->score_or_queue({{"text", text}, {"item", item}}, key);
  }

  TempDir dir;
  LengthScorer scorer;
  int64_t now = 1'000'000, set_by = 0;
  QueueRules rules_;
  std::unique_ptr<Queue> queue;
};

}  // namespace brim::serve
