// SPDX-License-Identifier: Apache-2.0
// Distributes events of the dashboard to subscribers on the I/O threads.
#pragma once
#include <atomic>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serve/call.h"

namespace brim::serve {

class EventSubscriber {
 public:
  virtual ~EventSubscriber() = default;
  // Runs on the subscriber's thread and may remove subscribers.
  virtual void deliver(const std::string& event, bool is_snapshot) = 0;
};

class EventHub {
 public:
  static constexpr int kMaxSubscribers = 32;

  void attach(IoThreads threads) {
    threads_ = std::move(threads);
    by_thread_.resize(static_cast<size_t>(threads_.count));
  }
  bool full() const { return subscribers_ >= kMaxSubscribers; }
  // Call these on the subscriber's thread.
  void add(int thread, EventSubscriber& subscriber) {
    ++subscribers_;
    by_thread_[static_cast<size_t>(thread)].insert(&subscriber);
  }
  void remove(int thread, EventSubscriber& subscriber) {
    --subscribers_;
    by_thread_[static_cast<size_t>(thread)].erase(&subscriber);
  }
  // Thread-safe. `name`: type of the event; `data`: one line of JSON.
  void post(std::string_view name, std::string_view data);

 private:
  void deliver(int thread, const std::string& event, bool is_snapshot);

  IoThreads threads_;
  std::atomic<int> subscribers_{0};
  std::vector<std::set<EventSubscriber*>> by_thread_;  // each used by its thread only
};

}  // namespace brim::serve
