// SPDX-License-Identifier: Apache-2.0
// What waits, in turns by whose it is: a client that brings very much delays others by what has begun and a turn of
// its own, not by all of it. Turns are counted by cost (deficit round robin); of one client's items those that are due
// earlier go first, and alike ones as they came.
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
  // `turn`: what a client may cost before the next one's turn. Its last item may pass it, which is made up for in its
  // next turns; a client that leaves in debt is remembered until it has missed a turn, or nobody waits any more.
  explicit FairQueue(int64_t turn) : turn_(turn) {}

  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  int64_t cost() const { return cost_; }  // of all that waits, less what was charged

  // When an item is due, in any unit that grows with time.
  static constexpr int64_t kNeverDue = std::numeric_limits<int64_t>::max();

  void push(uint64_t client, int64_t cost, Item item, int64_t due = kNeverDue) {
    const auto [found, is_new] = places_.try_emplace(client);
    if (is_new) found->second = clients_.insert(clients_.end(), Client{client, turn_, 0, 0, {}});
    found->second->waiting.insert(found->second->place_of(due), Waiting{cost, due, std::move(item)});
    found->second->cost += cost;
    cost_ += cost;
    ++size_;
  }

  // The next one, where there is one. It stays until pop(), or until charges end its client's turn.
  Item& front() {
    while (clients_.front().left <= 0 || clients_.front().waiting.empty()) {
      Client& client = clients_.front();
      if (client.left > 0) {  // its turn, and nothing of it waits
        remove_first();
        continue;
      }
      client.left += turn_;
      pass();
    }
    return clients_.front().waiting.front().item;
  }

  // So much of what front() gave costs is spent now.
  void charge(int64_t cost) {
    Client& client = clients_.front();
    client.left -= cost;
    client.waiting.front().cost -= cost;
    client.cost -= cost;
    cost_ -= cost;
  }

  // Takes out what front() gave, before another call of it. What was not charged is nobody's cost; after many of
  // those the next client has its turn, so that a client which leaves with very many holds up nobody.
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
      places_.clear();
    } else if (client.waiting.empty() && client.left >= 0) {
      remove_first();
    } else if (passes) {
      client.dropped = 0;
      pass();
    }
    return std::move(taken.item);
  }

  int64_t cost_of(uint64_t client) const {
    const auto found = places_.find(client);
    return found == places_.end() ? 0 : found->second->cost;
  }
  // What is spent until this client had `more` than what it has waiting and is due no later: its own, and of each
  // other's what the turns let go before that.
  int64_t cost_until(uint64_t client, int64_t more, int64_t due = kNeverDue) const {
    const auto found = places_.find(client);
    const Client* own = found == places_.end() ? nullptr : &*found->second;
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
    // Behind all that is due no later: at the end, where nothing is due or each item later than the one before.
    auto place_of(int64_t due) const {
      if (waiting.empty() || waiting.back().due <= due) return waiting.end();
      return std::upper_bound(waiting.begin(), waiting.end(), due,
                              [](int64_t at, const Waiting& other) { return at < other.due; });
    }
    int64_t cost_until(int64_t due) const {
      const auto place = place_of(due);
      int64_t sum = 0;
      if (place - waiting.begin() < waiting.end() - place) {
        for (auto at = waiting.begin(); at != place; ++at) sum += at->cost;
        return sum;
      }
      for (auto at = place; at != waiting.end(); ++at) sum += at->cost;
      return cost - sum;
    }
    uint64_t name;
    int64_t left;  // of its turn
    int64_t cost;  // of what waits
    int dropped;   // uncharged, in this turn
    std::deque<Waiting> waiting;
  };
  void pass() { clients_.splice(clients_.end(), clients_, clients_.begin()); }
  void remove_first() {
    places_.erase(clients_.front().name);
    clients_.pop_front();
  }

  const int64_t turn_;
  size_t size_ = 0;
  int64_t cost_ = 0;
  std::list<Client> clients_;  // whose turn it is stands first
  std::unordered_map<uint64_t, typename std::list<Client>::iterator> places_;
};

}  // namespace brim::engine
