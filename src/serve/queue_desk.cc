// SPDX-License-Identifier: Apache-2.0
#include "serve/queue_desk.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "base/log.h"

namespace brim::serve {
namespace {

constexpr int kDeskThreads = 4;          // calls that wait for the disk are written together
constexpr int64_t kLongestPauseMs = 50;  // between looks for what is old enough

int64_t unix_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

QueueDesk::QueueDesk(const std::filesystem::path& state_dir, const std::vector<QueueRules>& rules, QueueScorer& scorer)
    : state_(state_dir), queues_(state_, rules, scorer, unix_ms) {
  for (int i = 0; i < kDeskThreads; ++i) threads_.emplace_back([this] { work(); });
  threads_.emplace_back([this] { flush_old(); });
}

QueueDesk::~QueueDesk() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void QueueDesk::call(std::function<void(Queues&)> work) {
  {
    std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(work));
  }
  changed_.notify_all();  // one alone might be the thread that looks for what is old
}

void QueueDesk::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ending_ || !waiting_.empty(); });
    if (ending_) return;
    const auto next = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    next(queues_);
    lock.lock();
  }
}

void QueueDesk::flush_old() {
  std::unique_lock lock(mutex_);
  while (!ending_) {
    lock.unlock();
    try {
      queues_.flush_by_age();
    } catch (const Error& error) {  // tried again; health names it
      log_warning("{}", error.what());
    }
    const int64_t pause = std::clamp<int64_t>(queues_.due_ms().value_or(INT64_MAX) - unix_ms(), 1, kLongestPauseMs);
    lock.lock();
    if (!ending_) changed_.wait_for(lock, std::chrono::milliseconds(pause));
  }
}

}  // namespace brim::serve
