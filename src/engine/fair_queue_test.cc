// SPDX-License-Identifier: Apache-2.0
#include "engine/fair_queue.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace brim::engine {
namespace {

TEST(FairQueue, OneClientsItemsKeepTheirOrder) {
  FairQueue<int> queue(10);
  for (int i = 0; i < 100; ++i) queue.push(7, i % 30, i);
  EXPECT_EQ(queue.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(queue.pop(), i);
  EXPECT_TRUE(queue.empty());
}

TEST(FairQueue, WhoBringsMuchDelaysOthersByATurn) {
  FairQueue<int> queue(100);
  for (int i = 0; i < 10'000; ++i) queue.push(1, 10, i);
  for (int i = 0; i < 50; ++i) queue.pop();
  queue.push(2, 10, -1);
  int before = 0;
  while (queue.pop() != -1) ++before;
  EXPECT_LE(before, 10);
}

// Whatever comes when: nothing is lost, everyone's order is kept, and two that always wait get the same within a turn
// and the longest item.
TEST(FairQueue, SharesAreEqualAndNothingIsLost) {
  std::mt19937 random(3);
  FairQueue<std::pair<uint64_t, int>> queue(64);
  std::map<uint64_t, int> pushed, popped;
  std::map<uint64_t, int64_t> cost;
  std::map<std::pair<uint64_t, int>, int64_t> costs;
  const auto push = [&](uint64_t client) {
    const int64_t n = 1 + static_cast<int64_t>(random() % 200);
    costs[{client, pushed[client]}] = n;
    queue.push(client, n, {client, pushed[client]++});
  };
  for (int i = 0; i < 2000; ++i) {
    push(1);
    push(2);
  }
  for (int i = 0; i < 2000; ++i) {
    if (random() % 3 == 0) push(3 + random() % 50);  // who comes and goes
    const auto item = queue.pop();
    EXPECT_EQ(item.second, popped[item.first]++);
    cost[item.first] += costs[item];
    EXPECT_LE(std::abs(cost[1] - cost[2]), 64 + 200) << i;
  }
  while (!queue.empty()) {
    const auto item = queue.pop();
    EXPECT_EQ(item.second, popped[item.first]++);
  }
  EXPECT_EQ(popped, pushed);
}

}  // namespace
}  // namespace brim::engine
