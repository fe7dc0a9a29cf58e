// SPDX-License-Identifier: Apache-2.0
#include "engine/bulk_queue.h"

#include <chrono>
#include <utility>

#include "engine/scheduler.h"

namespace brim::engine {

using batch::PackedBatch;

BulkQueue::BulkQueue(Scheduler& scheduler, ModelHost& model, int64_t most_tokens, Collect collect)
    : scheduler_(scheduler), model_(model), most_tokens_(most_tokens), collect_(std::move(collect)) {
  scheduler_.require_process();
  std::lock_guard lock(scheduler_.mutex_);
  scheduler_.start();
  scheduler_.bulk_queues_.push_back(this);
  scheduler_.work_.notify_one();  // the device's idle time is counted from here on
}

BulkQueue::~BulkQueue() {
  std::unique_lock lock(scheduler_.mutex_);
  waiting_.clear();
  scheduler_.progress_.wait(lock, [&] { return started_ == 0; });
  std::erase(scheduler_.bulk_queues_, this);
}

void BulkQueue::throw_failure() const {
  if (failure_) std::rethrow_exception(failure_);
}

bool BulkQueue::wait_room(const std::atomic<bool>* stop) {
  std::unique_lock lock(scheduler_.mutex_);
  while (!waiting_.empty() && !failure_) {
    if (stop != nullptr && stop->load(std::memory_order_relaxed)) return false;
    if (stop == nullptr)
      scheduler_.progress_.wait(lock);
    else
      scheduler_.progress_.wait_for(lock, std::chrono::milliseconds(100));  // a signal handler cannot notify
  }
  throw_failure();
  return true;
}

void BulkQueue::submit(PackedBatch& batch, Launch launch) {
  {
    std::lock_guard lock(scheduler_.mutex_);
    throw_failure();
    if (scheduler_.failure_) std::rethrow_exception(scheduler_.failure_);
    Item& item = waiting_.emplace_back();
    item.launch = launch;
    if (!spare_.empty()) {
      item.batch = std::move(spare_.back());
      spare_.pop_back();
    }
    std::swap(item.batch, batch);
  }
  scheduler_.arrivals_.fetch_add(1);
  scheduler_.work_.notify_one();
}

bool BulkQueue::wait_one() {
  std::unique_lock lock(scheduler_.mutex_);
  throw_failure();
  if (started_ == 0 && waiting_.empty()) return false;
  const uint64_t seen = collected_;
  scheduler_.progress_.wait(lock, [&] { return collected_ != seen || failure_; });
  throw_failure();
  return true;
}

void BulkQueue::finish() {
  std::unique_lock lock(scheduler_.mutex_);
  scheduler_.progress_.wait(lock, [&] { return (started_ == 0 && waiting_.empty()) || failure_; });
  throw_failure();
}

std::vector<PackedBatch> BulkQueue::take_back() {
  std::lock_guard lock(scheduler_.mutex_);
  std::vector<PackedBatch> batches;
  for (Item& item : waiting_) batches.push_back(std::move(item.batch));
  waiting_.clear();
  return batches;
}

double BulkQueue::busy_seconds() const {
  std::lock_guard lock(scheduler_.mutex_);
  return busy_seconds_;
}

}  // namespace brim::engine
