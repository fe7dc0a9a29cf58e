// SPDX-License-Identifier: Apache-2.0
// Counts the threads of /score, so that the server ends after them.
#pragma once
#include <condition_variable>
#include <mutex>

namespace brim::serve {

class RowStreams {
 public:
  static constexpr int kMaxStreams = 16;

  bool full() const {
    std::lock_guard lock(mutex_);
    return running_ >= kMaxStreams;
  }
  void begin() {
    std::lock_guard lock(mutex_);
    ++running_;
  }
  // The caller must not use the server afterwards.
  void end() {
    std::lock_guard lock(mutex_);
    --running_;
    ended_.notify_all();
  }
  void wait_for_all() {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return running_ == 0; });
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  int running_ = 0;
};

}  // namespace brim::serve
