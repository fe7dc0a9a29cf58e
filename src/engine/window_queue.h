// SPDX-License-Identifier: Apache-2.0
// Packs windows of texts, submits the batches to the device's scheduler and returns their scores. All bulk work is
// packed and collected here; batches depend only on the windows and their order. Interactive texts are packed by
// the scheduler.
#pragma once
#include <functional>
#include <memory>
#include <optional>

#include "batch/packed_batch.h"
#include "engine/engine.h"
#include "engine/window_results.h"

namespace brim::engine {

class WindowQueue {
 public:
  // `collect` runs on the scheduler's thread, once per batch.
  WindowQueue(Engine& engine, std::function<void(const WindowResults&)> collect);

  Engine& engine() const { return engine_; }
  // The ids must stay valid until the window is packed.
  void push(const batch::Sequence& window) { packer_.push(window); }
  bool empty() const { return packer_.empty(); }
  bool ready() const { return packer_.ready(); }                  // a batch can be closed at full size
  uint64_t next_ticket() const { return packer_.next_ticket(); }  // ticket of the first unpacked window

  // Packs one batch and submits it once there is capacity; false if `stop` was set before.
  bool submit(const std::atomic<bool>* stop = nullptr, Launch launch = Launch::ops);
  // Submits all waiting windows. `single`: launch mode if they form one batch.
  void submit_all(Launch single);
  bool wait_one() { return bulk_->wait_one(); }  // see BulkQueue
  void finish() { bulk_->finish(); }
  // Withdraws batches the device has not started. Returns the lowest ticket without a result, valid once finish() has
  // returned.
  std::optional<uint64_t> take_back();

  int64_t tokens() const { return tokens_; }  // total of submitted batches, likewise below
  int64_t batches() const { return batches_; }
  double sum_squares() const { return sum_squares_; }
  double busy_seconds() const { return bulk_->busy_seconds(); }
  double pack_seconds() const { return pack_seconds_; }

 private:
  void pack();
  Engine& engine_;
  batch::Packer packer_;
  batch::PackedBatch batch_;
  std::unique_ptr<BulkQueue> bulk_;
  int64_t tokens_ = 0, batches_ = 0;
  double sum_squares_ = 0, pack_seconds_ = 0;
};

}  // namespace brim::engine
