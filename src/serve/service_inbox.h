// SPDX-License-Identifier: Apache-2.0
// Collects the results of an I/O thread's requests.
#pragma once
#include <algorithm>
#include <iterator>
#include <mutex>
#include <span>
#include <vector>

#include "serve/service.h"

namespace brim::serve {

// A ticket is the slot of the call, then the index of the text within the call.
constexpr int kIndexBits = 24;

// Receives a batch's results on the device thread and wakes the I/O thread once for all of them.
class Service::Inbox final : public Completion {
 public:
  Inbox(Service& service, int thread) : service_(service), thread_(thread) {}

  void done(std::span<Answer> answers) noexcept override {
    bool first;
    {
      std::lock_guard lock(mutex_);
      first = waiting_.empty();
      std::move(answers.begin(), answers.end(), std::back_inserter(waiting_));
    }
    if (first) service_.server_->post(thread_, [this] { take(); });
  }

  // Runs on the I/O thread.
  void take() {
    {
      std::lock_guard lock(mutex_);
      taken_.clear();
      taken_.swap(waiting_);
    }
    service_.take_answers(thread_, taken_);
    taken_.clear();
  }

  // Calls with texts in flight, by slot.
  uint32_t put(Call& call) {
    if (free_.empty()) {
      calls_.push_back(&call);
      return static_cast<uint32_t>(calls_.size() - 1);
    }
    const uint32_t slot = free_.back();
    free_.pop_back();
    calls_[slot] = &call;
    return slot;
  }
  Call& at(uint32_t slot) { return *calls_[slot]; }
  std::vector<Call*> calls() const {
    std::vector<Call*> all;
    std::ranges::copy_if(calls_, std::back_inserter(all), [](const Call* call) { return call != nullptr; });
    return all;
  }
  void remove(uint32_t slot) {
    calls_[slot] = nullptr;
    free_.push_back(slot);
  }
  // Call after the threads have ended.
  void drop_all() {
    for (Call* call : calls_) delete call;
    calls_.clear();
  }

 private:
  Service& service_;
  const int thread_;
  std::mutex mutex_;
  std::vector<Answer> waiting_, taken_;
  std::vector<Call*> calls_;
  std::vector<uint32_t> free_;
};

}  // namespace brim::serve
