// SPDX-License-Identifier: Apache-2.0
// Queue with fair scheduling between clients (deficit round robin by cost): a heavy client delays others by the work
// already started and one turn, not by its whole backlog. Items of one client are ordered by due time, then by arrival.
// Not thread-safe.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <list>
#include <unordered_map>
#include <utility>

namespace brim::engine {

template <class Item>
class FairQueue {
 public:
  // `turn`: cost a client may spend before the next client's turn. Its last item may exceed this, which is deducted
  // from its next turns; the debt of a client that leaves is kept until it has missed a turn or the queue is empty.
  explicit FairQueue(int64_t turn) : turn_(turn) {}

  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  int64_t cost() const { return cost_; }  // total cost of waiting items, less charges

  // Due time of an item, in any unit that grows with time.
  static constexpr int64_t kNeverDue = std::numeric_limits<int64_t>::max();

  void push(uint64_t client, int64_t cost, Item item, int64_t due = kNeverDue) {
    const auto [found, is_new] = index_.try_emplace(client);
    if (is_new) found->second = clients_.insert(clients_.end(), Client{client, turn_, 0, 0, {}});
    found->second->waiting.insert(found->second->position_of(due), Waiting{cost, due, std::move(item)});
    found->second->cost += cost;
    cost_ += cost;
    ++size_;
  }

  // The next item; the queue must not be empty. It stays until pop(), or until charges end its client's turn.
  Item& front() {
    while (clients_.front().left <= 0 || clients_.front().waiting.empty()) {
      Client& client = clients_.front();
      if (client.left > 0) {  // its turn, but it has no waiting items
        remove_first();
        continue;
      }
      client.left += turn_;
      pass();
    }
    return clients_.front().waiting.front().item;
  }

  // Charges part of the cost of the front() item.
  void charge(int64_t cost) {
    Client& client = clients_.front();
    client.left -= cost;
    client.waiting.front().cost -= cost;
    client.cost -= cost;
    cost_ -= cost;
  }

  // Removes the item returned by front(); call before front() is called again. The uncharged rest of its cost is
  // dropped. After many such items the next client gets its turn, so that a client that withdraws very many items does
  // not block others.
  Item pop() {
    Client& client = clients_.front();
    Waiting taken = std::move(client.waiting.front());
    client.waiting.pop_front();
    client.cost -= taken.cost;
    cost_ -= taken.cost;
    --size_;
    const bool passes = taken.cost > 0 && ++client.dropped >= kDropsOfATurn;
    if (size_ == 0) {
      clients_.clear();
      index_.clear();
    } else if (client.waiting.empty() && client.left >= 0) {
      remove_first();
    } else if (passes) {
      client.dropped = 0;
      pass();
    }
    return std::move(taken.item);
  }

  int64_t cost_of(uint64_t client) const {
    const auto found = index_.find(client);
    return found == index_.end() ? 0 : found->second->cost;
  }
  // Cost spent until this client gets `more` beyond its waiting items that are due no later: its own cost, and the
  // part of each other client's cost that its turns allow before that.
  int64_t cost_until(uint64_t client, int64_t more, int64_t due = kNeverDue) const {
    const auto found = index_.find(client);
    const Client* own = found == index_.end() ? nullptr : &*found->second;
    const int64_t wanted = more + (own != nullptr ? own->cost_until(due) : 0);
    const int64_t later = std::max<int64_t>(0, wanted - (own != nullptr ? own->left : turn_));
    const int64_t turns = 1 + (later + turn_ - 1) / turn_;
    int64_t sum = wanted;
    for (const Client& other : clients_)
      if (&other != own) sum += std::min(other.cost, turns * turn_);
    return sum;
  }

 private:
  static constexpr int kDropsOfATurn = 256;
  struct Waiting {
    int64_t cost;
    int64_t due;
    Item item;
  };
  struct Client {
    // Position behind all items due no later; the end if there are no due times or they arrive in order.
    auto position_of(int64_t due) const {
      if (waiting.empty() || waiting.back().due <= due) return waiting.end();
      return std::upper_bound(waiting.begin(), waiting.end(), due,
                              [](int64_t at, const Waiting& other) { return at < other.due; });
    }
    int64_t cost_until(int64_t due) const {
      const auto position = position_of(due);
      int64_t sum = 0;
      if (position - waiting.begin() < waiting.end() - position) {
        for (auto at = waiting.begin(); at != position; ++at) sum += at->cost;
        return sum;
      }
      for (auto at = position; at != waiting.end(); ++at) sum += at->cost;
      return cost - sum;
    }
    uint64_t name;
    int64_t left;  // rest of its turn
    int64_t cost;  // cost of its waiting items
    int dropped;   // uncharged items in this turn
    std::deque<Waiting> waiting;
  };
  void pass() { clients_.splice(clients_.end(), clients_, clients_.begin()); }
  void remove_first() {
    index_.erase(clients_.front().name);
    clients_.pop_front();
  }

  const int64_t turn_;
  size_t size_ = 0;
  int64_t cost_ = 0;
  std::list<Client> clients_;  // the client whose turn it is comes first
  std::unordered_map<uint64_t, typename std::list<Client>::iterator> index_;
};

}  // namespace brim::engine
