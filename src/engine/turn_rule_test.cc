// SPDX-License-Identifier: Apache-2.0
#include "engine/turn_rule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>

namespace brim::engine {
namespace {

using Next = TurnRule::Next;

TEST(TurnRule, BulkBatchesFollowWithoutGapIfNoTextsAreExpected) {
  const TurnRule rule;
  EXPECT_EQ(rule.next({.bulk_tokens = 100, .bulk_runs = true}), Next::bulk);
  EXPECT_EQ(rule.next({.bulk_tokens = 100, .bulk_runs = true, .expects_texts = true}), Next::collect);
  EXPECT_EQ(rule.next({.bulk_tokens = 100, .expects_texts = true}), Next::bulk);
  EXPECT_EQ(rule.next({.texts = true, .bulk_tokens = 100, .expects_texts = true}), Next::texts);
  EXPECT_EQ(rule.next({.texts = true, .bulk_tokens = 100, .bulk_runs = true, .expects_texts = true}), Next::collect);
  EXPECT_EQ(rule.next({.bulk_runs = true}), Next::collect);
}

// A GPU with two batches in flight, intermittent texts and endless bulk work, in batches of at least half the tokens of
// an interactive one.
TEST(TurnRule, TextWaitsForAtMostTwoBulkBatches) {
  constexpr int64_t kBudget = 1024;
  for (uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    const auto draw = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
    const int64_t most_texts = 1 + draw(3 * kBudget);
    TurnRule rule;
    std::deque<bool> in_flight;  // true for bulk
    const auto bulk_in_flight = [&] { return static_cast<int>(std::count(in_flight.begin(), in_flight.end(), true)); };
    int64_t waiting = 0, text_tokens = 0, bulk_tokens = 0, next_bulk = kBudget;
    int behind = 0;  // bulk batches the waiting texts have waited for
    for (int step = 0; step < 20'000; ++step) {
      if (draw(3) == 0) {
        if (waiting == 0) behind = bulk_in_flight();
        waiting += draw(most_texts);
      }
      const bool free_slot = in_flight.size() < 2;
      Next next = rule.next({waiting > 0 && free_slot, next_bulk, bulk_in_flight() > 0, true});
      if (next == Next::bulk && !free_slot) next = Next::collect;
      if (next == Next::texts) {
        ASSERT_EQ(bulk_in_flight(), 0) << "it would wait for the batch it came during, and for its own behind it";
        const int64_t tokens = std::min(waiting, kBudget);
        waiting -= tokens;
        text_tokens += tokens;
        behind = 0;
        rule.gave_texts(tokens, kBudget);
        in_flight.push_back(false);
      } else if (next == Next::bulk) {
        ASSERT_LE(text_tokens, TurnRule::kTokensPerBulkToken * bulk_tokens + 5 * kBudget) << seed << " " << step;
        bulk_tokens += next_bulk;
        rule.gave_bulk(next_bulk);
        next_bulk = kBudget / 2 + draw(2 * kBudget);
        in_flight.push_back(true);
        if (waiting > 0) {
          ASSERT_LE(++behind, 2) << seed << " " << step;
        }
      } else {
        ASSERT_FALSE(in_flight.empty()) << "nothing is done while there is work";
        in_flight.pop_front();
      }
    }
    EXPECT_GT(text_tokens, 0);
    EXPECT_GT(bulk_tokens, 0);
  }
}

}  // namespace
}  // namespace brim::engine
