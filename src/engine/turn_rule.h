// SPDX-License-Identifier: Apache-2.0
// Whose batch a device begins next: interactive texts go first, but not always. Without clock, lock or device, so that
// tests walk through it.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>

namespace brim::engine {

class TurnRule {
 public:
  // Under the heaviest load bulk work keeps a part of the device: a turn after so many interactive batches, and at
  // least a token for so many of theirs, which may be far larger than its own.
  static constexpr int kInteractiveStreak = 4;
  static constexpr int64_t kTokensPerBulkToken = 9;

  enum class Next : uint8_t { texts, bulk, collect };
  struct Waiting {
    bool texts = false;                       // interactive ones, for which the device has room
    std::optional<int64_t> bulk_tokens = {};  // of the next bulk batch
    bool bulk_runs = false;                   // one is in flight
    bool texts_may_come = false;              // there is somebody who brings them
  };
  // A card takes turns: a bulk batch, then all texts that came meanwhile, with the next bulk batch right behind them.
  // What is in flight is what a text waits for, and a batch of few texts costs about as much as one of many. Where
  // nobody brings texts, bulk batches follow one another without a gap.
  Next next(const Waiting& waiting) const {
    const bool bulk_is_due = waiting.bulk_tokens && (streak_ >= kInteractiveStreak ||
                                                     passed_over_tokens_ >= kTokensPerBulkToken * *waiting.bulk_tokens);
    if (waiting.texts && !waiting.bulk_runs && !bulk_is_due) return Next::texts;
    if (!waiting.bulk_tokens || (waiting.bulk_runs && waiting.texts_may_come)) return Next::collect;
    return Next::bulk;
  }

  // A client of bulk work that was slow to bring it gets no long run for it afterwards.
  void gave_texts(int64_t tokens, int64_t most_tokens) {
    ++streak_;
    passed_over_tokens_ = std::min(passed_over_tokens_ + tokens, kInteractiveStreak * most_tokens);
  }
  void gave_bulk(int64_t tokens) {
    streak_ = 0;
    passed_over_tokens_ = std::max<int64_t>(0, passed_over_tokens_ - kTokensPerBulkToken * tokens);
  }
  void no_bulk() { passed_over_tokens_ = 0; }  // nobody has any

 private:
  int streak_ = 0;                  // interactive batches since bulk had its turn
  int64_t passed_over_tokens_ = 0;  // and their tokens, less what its own turns made up for
};

}  // namespace brim::engine
