// SPDX-License-Identifier: Apache-2.0
#include "engine/turn_rule.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>

namespace brim::engine {
namespace {

using Next = TurnRule::Next;

TEST(TurnRule, BulkBatchesFollowOneAnotherWhereNobodyBringsTexts) {
  const TurnRule rule;
  EXPECT_EQ(rule.next({.bulk_tokens = 100, .bulk_runs = true}), Next::bulk);
  EXPECT_EQ(rule.next({.bulk_tokens = 100, .bulk_runs = true, .texts_may_come = true}), Next::collect);
  EXPECT_EQ(rule.next({.bulk_tokens = 100, .texts_may_come = true}), Next::bulk);
  EXPECT_EQ(rule.next({.texts = true, .bulk_tokens = 100, .texts_may_come = true}), Next::texts);
  EXPECT_EQ(rule.next({.texts = true, .bulk_tokens = 100, .bulk_runs = true, .texts_may_come = true}), Next::collect);
  EXPECT_EQ(rule.next({.bulk_runs = true}), Next::collect);
}

}  // namespace
}  // namespace brim::engine
