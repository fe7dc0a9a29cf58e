// SPDX-License-Identifier: Apache-2.0
#include "engine/fair_queue.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

namespace brim::engine {
namespace {

struct Errand {
  uint64_t client;
  int number;
  int64_t cost;
};
using Errands = FairQueue<Errand>;

Errand take(Errands& queue) {
  queue.charge(queue.front().cost);
  return queue.pop();
}
void push(Errands& queue, uint64_t client, int64_t cost, int number = 0, int64_t due = Errands::kNeverDue) {
  queue.push(client, cost, {client, number, cost}, due);
}

TEST(FairQueue, KeepsTheOrderOfOneClient) {
  Errands queue(10);
  for (int i = 0; i < 100; ++i) push(queue, 7, 1 + i % 30, i);
  EXPECT_EQ(queue.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(take(queue).number, i);
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.cost(), 0);
}

TEST(FairQueue, OrdersItemsOfOneClientByDueTime) {
  std::mt19937 random(11);
  Errands queue(10);
  std::vector<std::pair<int64_t, int>> order;
  std::map<int, int64_t> costs;
  for (int i = 0; i < 500; ++i) {
    const int64_t due = random() % 2 == 0 ? Errands::kNeverDue : static_cast<int64_t>(random() % 20);
    costs[i] = 1 + static_cast<int64_t>(random() % 30);
    push(queue, 7, costs[i], i, due);
    order.emplace_back(due, i);
  }
  std::sort(order.begin(), order.end());
  for (const int64_t due : {int64_t{-1}, int64_t{0}, int64_t{7}, int64_t{19}, Errands::kNeverDue}) {
    int64_t before = 0;
    for (const auto& [at, number] : order) before += at <= due ? costs[number] : 0;
    EXPECT_EQ(queue.cost_until(7, 5, due), before + 5) << due;
  }
  for (const auto& [due, number] : order) EXPECT_EQ(take(queue).number, number);
}

// Due times only order items of the same client: deadlines gain no turns.
TEST(FairQueue, TurnsDoNotDependOnDueTimes) {
  Errands queue(100);
  for (int i = 0; i < 1000; ++i) {
    push(queue, 1, 10, i, 1000 - i);
    push(queue, 2, 10, i);
  }
  EXPECT_EQ(queue.cost_until(1, 10, 0), 110) << "a turn of the other's";
  std::map<uint64_t, int64_t> spent;
  for (int i = 0; i < 500; ++i) {
    const Errand piece = take(queue);
    spent[piece.client] += piece.cost;
    EXPECT_LE(std::abs(spent[1] - spent[2]), 100) << i;
  }
}

// A due item that arrives while another is charged in pieces is served between the pieces.
TEST(FairQueue, DueItemIsServedBetweenPiecesOfALargeItem) {
  Errands queue(1000);
  push(queue, 1, 300, 1);
  EXPECT_EQ(queue.front().number, 1);
  queue.charge(100);
  push(queue, 1, 50, 2, 5);
  EXPECT_EQ(take(queue).number, 2);
  EXPECT_EQ(queue.front().number, 1);
  EXPECT_EQ(queue.cost(), 200);
  queue.charge(200);
  EXPECT_EQ(queue.pop().number, 1);
  EXPECT_TRUE(queue.empty());
}

TEST(FairQueue, HeavyClientDelaysOthersByOneTurn) {
  Errands queue(100);
  for (int i = 0; i < 10'000; ++i) push(queue, 1, 10);
  for (int i = 0; i < 50; ++i) take(queue);
  const int64_t predicted = queue.cost_until(2, 10);
  push(queue, 2, 10);
  int64_t before = 10;
  while (take(queue).client != 2) before += 10;
  EXPECT_LE(before, 110);
  EXPECT_EQ(predicted, 110);
  EXPECT_EQ(queue.cost_until(1, 0), queue.cost()) << "whose own is all";
}

// An item that costs many turns is charged in pieces, with other clients' turns in between.
TEST(FairQueue, LargeItemTakesTurns) {
  Errands queue(100);
  push(queue, 1, 1000);
  push(queue, 2, 100);
  push(queue, 2, 100);
  std::string order;
  while (!queue.empty()) {
    const uint64_t client = queue.front().client;
    order += std::to_string(client);
    queue.charge(100);
    if (client == 2 || queue.cost_of(1) == 0) queue.pop();
  }
  EXPECT_EQ(order, "121211111111");
}

TEST(FairQueue, DroppedItemsAreFree) {
  Errands queue(100);
  for (int i = 0; i < 1000; ++i) push(queue, 1, 50, i);
  push(queue, 2, 50);
  int drops = 0;
  for (; queue.front().client == 1; ++drops) queue.pop();
  EXPECT_LE(drops, 256) << "another's turn comes before all of them are gone";
  EXPECT_GT(drops, 100);
  EXPECT_EQ(queue.cost(), 50 + (1000 - drops) * 50);
  take(queue);
  push(queue, 2, 50);
  while (queue.front().client != 1 || queue.front().number < 998) queue.front().client == 2 ? take(queue) : queue.pop();
  push(queue, 2, 50);
  push(queue, 2, 50);
  int row = 0;
  for (; !queue.empty() && queue.front().client == 1; ++row) take(queue);
  EXPECT_EQ(row, 2) << "a whole turn is left to it";
}

// A client with always a single item of maximum cost gets no more than one with many waiting items.
TEST(FairQueue, KeepsADebtBetweenTwoItems) {
  Errands queue(100);
  std::map<uint64_t, int64_t> spent;
  for (int i = 0; i < 10'000; ++i) push(queue, 1, 20);
  push(queue, 2, 350);
  while (spent[1] < 100'000) {
    const Errand piece = take(queue);
    spent[piece.client] += piece.cost;
    if (piece.client == 2) push(queue, 2, 350);
  }
  EXPECT_NEAR(static_cast<double>(spent[2]), static_cast<double>(spent[1]), 500);
  // The debt is dropped once the queue is empty.
  while (!queue.empty()) take(queue);
  push(queue, 1, 20);
  push(queue, 2, 20);
  EXPECT_EQ(take(queue).client, 1u);
}

// For random arrivals nothing is lost, the order per client is kept, and two clients that always have waiting items get
// equal shares within a turn and the largest item.
TEST(FairQueue, GivesEqualSharesAndLosesNothing) {
  std::mt19937 random(3);
  Errands queue(64);
  std::map<uint64_t, int> pushed, popped;
  std::map<uint64_t, int64_t> cost;
  int64_t waiting = 0;
  const auto add = [&](uint64_t client) {
    const int64_t n = 1 + static_cast<int64_t>(random() % 200);
    push(queue, client, n, pushed[client]++);
    waiting += n;
  };
  const auto next = [&](bool dropped) {
    const Errand piece = dropped ? (queue.front(), queue.pop()) : take(queue);
    EXPECT_EQ(piece.number, popped[piece.client]++);
    if (!dropped) cost[piece.client] += piece.cost;
    waiting -= piece.cost;
    EXPECT_EQ(queue.cost(), waiting);
  };
  for (int i = 0; i < 2000; ++i) {
    add(1);
    add(2);
  }
  for (int i = 0; i < 2000; ++i) {
    if (random() % 3 == 0) add(3 + random() % 50);  // short-lived clients
    next(random() % 10 == 0);
    EXPECT_LE(std::abs(cost[1] - cost[2]), 64 + 200) << i;
  }
  while (!queue.empty()) next(false);
  EXPECT_EQ(popped, pushed);
}

}  // namespace
}  // namespace brim::engine
