// SPDX-License-Identifier: Apache-2.0
// Windows of texts in, their scores out: packs, hands batches to the device's scheduler and gives back what comes. The
// one place where bulk work is packed and collected; batches depend on the windows and their order alone.
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
  // `collect` runs on the scheduler's thread, batch by batch.
  WindowQueue(Engine& engine, std::function<void(const WindowResults&)> collect);

  Engine& engine() const { return engine_; }
  // The ids must stay until the window was packed.
  void push(const batch::Sequence& window) { packer_.push(window); }
  bool empty() const { return packer_.empty(); }
  bool ready() const { return packer_.ready(); }                  // a batch can be closed without losing fill
  uint64_t next_ticket() const { return packer_.next_ticket(); }  // of the first window that is not packed

  // Packs one batch and hands it over once there is room; false: `stop` was set before.
  bool submit(const std::atomic<bool>* stop = nullptr, Launch launch = Launch::ops);
  // All that waits. `single`: how it is launched where it is one batch.
  void submit_all(Launch single);
  bool wait_one() { return bulk_->wait_one(); }  // see Bulk
  void finish() { bulk_->finish(); }
  // Withdraws what the device has not begun: the lowest ticket that has no result and will get none, once finish() has
  // returned.
  std::optional<uint64_t> take_back();

  int64_t tokens() const { return tokens_; }  // of the batches handed over, as are these
  int64_t batches() const { return batches_; }
  double sum_squares() const { return sum_squares_; }
  double busy_seconds() const { return bulk_->busy_seconds(); }
  double pack_seconds() const { return pack_seconds_; }

 private:
  void pack();
  Engine& engine_;
  batch::Packer packer_;
  batch::PackedBatch batch_;
  std::unique_ptr<Bulk> bulk_;
  int64_t tokens_ = 0, batches_ = 0;
  double sum_squares_ = 0, pack_seconds_ = 0;
};

}  // namespace brim::engine
