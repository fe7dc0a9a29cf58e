// SPDX-License-Identifier: Apache-2.0
// Decides which batch a device starts next: interactive texts usually go first. Uses no clock, lock or device, so that
// it can be tested step by step.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>

namespace brim::engine {

class TurnRule {
 public:
  // Under full load bulk work keeps a share of the device: one turn after this many interactive batches, and at least
  // one token per this many interactive tokens, whose batches may be far larger.
  static constexpr int kInteractiveStreak = 4;
  static constexpr int64_t kTokensPerBulkToken = 9;

  enum class Next : uint8_t { texts, bulk, collect };
  struct Waiting {
    bool texts = false;                       // interactive texts wait and the device has a free slot
    std::optional<int64_t> bulk_tokens = {};  // size of the next bulk batch
    bool bulk_runs = false;                   // a bulk batch is in flight
    bool expects_texts = false;               // interactive clients exist
  };
  // On a GPU a bulk batch alternates with all texts that arrived during it, and the next bulk batch follows directly. A
  // text waits for everything in flight, and a batch of few texts costs about as much as one of many. Without
  // interactive clients, bulk batches follow each other without a gap.
  Next next(const Waiting& waiting) const {
    const bool bulk_is_due = waiting.bulk_tokens && (streak_ >= kInteractiveStreak ||
                                                     passed_over_tokens_ >= kTokensPerBulkToken * *waiting.bulk_tokens);
    if (waiting.texts && !waiting.bulk_runs && !bulk_is_due) return Next::texts;
    if (!waiting.bulk_tokens || (waiting.bulk_runs && waiting.expects_texts)) return Next::collect;
    return Next::bulk;
  }

  // The sum is capped, so that a slow bulk client does not get a long run of turns afterwards.
  void gave_texts(int64_t tokens, int64_t most_tokens) {
    ++streak_;
    passed_over_tokens_ = std::min(passed_over_tokens_ + tokens, kInteractiveStreak * most_tokens);
  }
  void gave_bulk(int64_t tokens) {
    streak_ = 0;
    passed_over_tokens_ = std::max<int64_t>(0, passed_over_tokens_ - kTokensPerBulkToken * tokens);
  }
  void no_bulk() { passed_over_tokens_ = 0; }  // no bulk work is waiting

 private:
  int streak_ = 0;                  // interactive batches since the last bulk turn
  int64_t passed_over_tokens_ = 0;  // their tokens, less those compensated by bulk turns
};

}  // namespace brim::engine
