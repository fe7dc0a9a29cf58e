// SPDX-License-Identifier: Apache-2.0
// Collects the results of an I/O thread's requests. Included by dispatch*.cc only.
#pragma once
#include <algorithm>
#include <iterator>
#include <mutex>
#include <span>
#include <vector>

#include "serve/dispatch.h"

namespace brim::serve {

// A ticket is the slot of the call, then the index of the text within the call.
constexpr int kIndexBits = 24;

// Receives a batch's results on the device thread and wakes the I/O thread once for all of them.
class Dispatcher::Inbox final : public Completion {
 public:
  Inbox(Dispatcher& dispatcher, int thread) : dispatcher_(dispatcher), thread_(thread) {}

  void done(std::span<Answer> answers) noexcept override {
    bool first;
    {
      std::lock_guard lock(mutex_);
      first = waiting_.empty();
      std::move(answers.begin(), answers.end(), std::back_inserter(waiting_));
    }
    if (first) dispatcher_.post(thread_, [this] { take(); });
  }

  // Runs on the I/O thread.
  void take() {
    {
      std::lock_guard lock(mutex_);
      taken_.clear();
      taken_.swap(waiting_);
    }
    dispatcher_.take_answers(thread_, taken_);
    taken_.clear();
  }

 private:
  Dispatcher& dispatcher_;
  const int thread_;
  std::mutex mutex_;
  std::vector<Answer> waiting_, taken_;
};

}  // namespace brim::serve
