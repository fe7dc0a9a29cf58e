// SPDX-License-Identifier: Apache-2.0
// What waits, in turns by whose it is: a client that brings very much delays others by what has begun and a turn of
// its own, not by all of it. Turns are counted by cost (deficit round robin); one client's items keep their order.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <unordered_map>
#include <utility>

namespace brim::engine {

template <class Item>
class FairQueue {
 public:
  // `turn`: what a client may cost before the next one's turn; its last item may pass it, which is made
  // up for in its next turns while more of its items wait, and forgotten when none does.
  explicit FairQueue(int64_t turn) : turn_(turn) {}

  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }

  void push(uint64_t client, int64_t cost, Item item) {
    const auto [found, is_new] = places_.try_emplace(client);
    if (is_new) found->second = clients_.insert(clients_.end(), Client{client, turn_, {}});
    found->second->waiting.push_back({cost, std::move(item)});
    ++size_;
  }

  // The next one; call where there is one.
  Item pop() {
    while (clients_.front().left <= 0) {
      clients_.front().left += turn_;
      clients_.splice(clients_.end(), clients_, clients_.begin());
    }
    Client& client = clients_.front();
    client.left -= client.waiting.front().cost;
    Item item = std::move(client.waiting.front().item);
    client.waiting.pop_front();
    --size_;
    if (client.waiting.empty()) {
      places_.erase(client.name);
      clients_.pop_front();
    }
    return item;
  }

 private:
  struct Waiting {
    int64_t cost;
    Item item;
  };
  struct Client {
    uint64_t name;
    int64_t left;  // of its turn
    std::deque<Waiting> waiting;
  };
  const int64_t turn_;
  size_t size_ = 0;
  std::list<Client> clients_;  // whose turn it is stands first
  std::unordered_map<uint64_t, typename std::list<Client>::iterator> places_;
};

}  // namespace brim::engine
