// SPDX-License-Identifier: Apache-2.0
// Keeps batches in flight on a device: stage into page-locked memory, copy, compute, copy back, collect. On the CPU a
// batch is done when submit returns; on CUDA results arrive later, in order, while the next batches are staged.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "base/timeline.h"
#include "batch/packed_batch.h"
#include "device/device.h"
#include "device/event.h"
#include "engine/small_batches.h"
#include "memory/ledger.h"
#include "model/forward_runner.h"

namespace brim::engine {

// How a batch is launched. Graphs round up to their bucket, so that the last digits may differ from those of ops: what
// must not depend on its company (files) is launched by ops.
enum class Launch : uint8_t { ops, graph };

class BatchRunner {
 public:
  using Collect = std::function<void(const batch::PackedBatch&, const float* result, double busy_seconds)>;
  // All memory is taken here: `depth` slots for the largest batch of `limits` and its result of `width` floats a row.
  BatchRunner(device::Device& device, device::Stream& compute, model::ForwardRunner& forward,
              const model::BatchLimits& limits, int depth, int64_t result_rows, int64_t width,
              memory::PlannedMemory* planned = nullptr);
  ~BatchRunner();

  // Takes the batch's contents (swapped with a used batch's, so that storage circulates). `collect` is called from here
  // on the CPU, else from a later call; batches come back in the order they were given. With no room the oldest is
  // collected first. A graph is launched where one was captured for that size.
  void submit(batch::PackedBatch& batch, Collect collect, Launch launch = Launch::ops);
  // Whether submit() would collect nothing first. One graph runs at a time.
  bool has_room(Launch launch = Launch::ops) const {
    return slots_.empty() || (in_flight_ < slots_.size() && !(launch == Launch::graph && small_ && small_->running()));
  }
  size_t in_flight() const { return in_flight_; }
  bool collect_one();  // waits for the oldest batch in flight; false if there is none
  void finish() {      // waits for all that is in flight
    while (collect_one()) {
    }
  }

  // Captures graphs for small batches (CUDA; elsewhere it does nothing), so that a few texts wait for no launches.
  void prepare_small(model::Output output);

  // Ops of batches with fewer tokens are not named one by one when they fail: it would cost them more than they take.
  void name_ops_from(int64_t tokens) { named_from_ = tokens; }

 private:
  struct Slot;
  void start_lanes();

  device::Device& device_;
  device::Stream& compute_;
  model::ForwardRunner& forward_;
  model::BatchLimits limits_;
  int64_t width_;
  memory::PlannedMemory* planned_;
  std::unique_ptr<device::Stream> copy_;
  std::unique_ptr<device::DeviceClock> clock_;  // made, with the lanes, for the first batch that is traced
  Timeline::Lane *device_lane_ = nullptr, *copy_lane_ = nullptr, *back_lane_ = nullptr;
  std::unique_ptr<SmallBatches> small_;
  device::DeviceBuffer block_;  // of all slots
  std::vector<std::unique_ptr<Slot>> slots_;
  size_t next_ = 0, in_flight_ = 0;
  int64_t named_from_ = 0;
  int64_t last_done_ns_ = 0;
};

}  // namespace brim::engine
