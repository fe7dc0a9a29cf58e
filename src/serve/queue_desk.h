// SPDX-License-Identifier: Apache-2.0
// Where requests about queues are worked on: their calls wait for disk and device, which an I/O thread may not. A few
// threads do them, and one flushes what has waited long enough.
#pragma once
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "serve/queues.h"
#include "serve/state_dir.h"

namespace brim::serve {

class QueueDesk {
 public:
  QueueDesk(const std::filesystem::path& state_dir, const std::vector<QueueRules>& rules, QueueScorer& scorer);
  ~QueueDesk();  // what has begun is finished, what waits is dropped
  QueueDesk(const QueueDesk&) = delete;
  QueueDesk& operator=(const QueueDesk&) = delete;

  void call(std::function<void(Queues& queues)> work);  // any thread; run soon on one of its own
  const Queues& queues() const { return queues_; }

 private:
  void work();
  void flush_old();

  StateDir state_;
  Queues queues_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void(Queues&)>> waiting_;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace brim::serve
