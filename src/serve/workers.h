// SPDX-License-Identifier: Apache-2.0
// A small thread pool for work that would block an I/O thread.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace brim::serve {

class Workers {
 public:
  explicit Workers(int threads) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
  }
  ~Workers() { stop(); }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  void call(std::function<void()> work) {  // thread-safe; `work` must not throw
    {
      std::lock_guard lock(mutex_);
      waiting_.push_back(std::move(work));
    }
    changed_.notify_one();
  }
  // Finishes running tasks and drops waiting ones.
  void stop() {
    {
      std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return ending_ || !waiting_.empty(); });
      if (ending_) return;
      auto next = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      next();
      next = nullptr;  // destroy captures without holding the lock
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace brim::serve
