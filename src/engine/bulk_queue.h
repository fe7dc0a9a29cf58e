// SPDX-License-Identifier: Apache-2.0
// Bulk work of one caller for one model: batches that arrive packed (files, lists of texts) and are computed as packed,
// so that the same texts give the same bytes under any other load.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <vector>

#include "batch/packed_batch.h"
#include "engine/device_queue.h"
#include "engine/model_host.h"

namespace brim::engine {

class Scheduler;

class BulkQueue {
 public:
  using Collect = std::function<void(const batch::PackedBatch&, const float* result)>;
  // `collect` is called on the scheduler's thread for each batch in order. `most_tokens`: tokens of a full batch.
  BulkQueue(Scheduler& scheduler, ModelHost& model, int64_t most_tokens, Collect collect);
  ~BulkQueue();  // drops batches that are not started and waits for the rest
  BulkQueue(const BulkQueue&) = delete;
  BulkQueue& operator=(const BulkQueue&) = delete;

  // Waits until submit() has capacity: one batch may wait in addition to those in flight. False if `stop` was set
  // first. Rethrows errors of the device or of `collect`.
  bool wait_room(const std::atomic<bool>* stop = nullptr);
  // Takes the batch's contents and returns the storage of a used one. Requires capacity.
  void submit(batch::PackedBatch& batch, Launch launch = Launch::ops);
  bool wait_one();                              // waits until one more batch is collected; false if none is in flight
  void finish();                                // waits until all are collected
  std::vector<batch::PackedBatch> take_back();  // batches the device has not started
  double busy_seconds() const;                  // device time of collected batches

 private:
  friend class Scheduler;
  struct Item {
    batch::PackedBatch batch;
    Launch launch;
  };
  bool has_work() const { return !waiting_.empty(); }
  void throw_failure() const;

  Scheduler& scheduler_;
  ModelHost& model_;
  const int64_t most_tokens_;
  const Collect collect_;
  std::deque<Item> waiting_;  // this and the following are protected by the scheduler's lock
  std::vector<batch::PackedBatch> spare_;
  size_t started_ = 0;  // started, not yet collected
  uint64_t collected_ = 0;
  double busy_seconds_ = 0;
  std::exception_ptr failure_;
};

}  // namespace brim::engine
