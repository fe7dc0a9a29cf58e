// SPDX-License-Identifier: Apache-2.0
// A bounded queue between pipeline stages. push blocks while full, pop while empty; close() lets consumers drain the
// remaining items, cancel() drops them and wakes all waiters (an error elsewhere, Ctrl-C).
#pragma once
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

namespace brim {

template <class T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) {}

  // Returns false once the queue is closed or cancelled; the item is then dropped.
  bool push(T item) {
    std::unique_lock lock(mutex_);
    not_full_.wait(lock, [&] { return closed_ || items_.size() < capacity_; });
    if (closed_) return false;
    items_.push_back(std::move(item));
    lock.unlock();
    filled_.notify_one();
    return true;
  }

  // Returns nullopt once the queue is closed and drained.
  std::optional<T> pop() {
    std::unique_lock lock(mutex_);
    filled_.wait(lock, [&] { return closed_ || !items_.empty(); });
    return take(lock);
  }

  void close() {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
    }
    wake_all();
  }

  void cancel() {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
      items_.clear();
    }
    wake_all();
  }

  size_t size() const {
    std::lock_guard lock(mutex_);
    return items_.size();
  }

 private:
  std::optional<T> take(std::unique_lock<std::mutex>& lock) {
    if (items_.empty()) return std::nullopt;
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    lock.unlock();
    not_full_.notify_one();
    return item;
  }
  void wake_all() {
    not_full_.notify_all();
    filled_.notify_all();
  }

  const size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable not_full_, filled_;
  std::deque<T> items_;
  bool closed_ = false;
};

}  // namespace brim
