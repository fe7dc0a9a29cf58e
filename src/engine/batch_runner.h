// SPDX-License-Identifier: Apache-2.0
// Keeps batches in flight on a device: stage into page-locked memory, copy, compute, copy back, collect. On the CPU a
// batch is done when submit returns; on CUDA results arrive later, in order, while the next batches are staged.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "base/timeline.h"
#include "data/packed_batch.h"
#include "device/device.h"
#include "device/event.h"
#include "engine/small_batches.h"
#include "model/forward_runner.h"

namespace brim {

class BatchRunner {
 public:
  using Collect = std::function<void(const PackedBatch&, const float* result)>;
  // All memory is taken here: `depth` slots for the largest batch of `limits` and its result of `width` floats a row.
  BatchRunner(Device& device, Stream& compute, ForwardRunner& forward, const BatchLimits& limits, int depth,
              int64_t result_rows, int64_t width);
  ~BatchRunner();

  // Takes the batch's contents (swapped with a used batch's, so that storage circulates). May collect earlier batches.
  void submit(PackedBatch& batch, const Collect& collect);
  void finish(const Collect& collect);       // waits for all that is in flight
  bool collect_one(const Collect& collect);  // waits for the oldest batch in flight; false if there is none

  // Time the device spent on batches since the last reset, measured on the device itself.
  double busy_seconds() const { return busy_seconds_; }
  void reset_busy() { busy_seconds_ = 0; }

  // Captures graphs for small batches (CUDA; elsewhere it does nothing), so that a few texts wait for no launches. A
  // small batch that finds nothing in flight is then computed at once.
  void prepare_small(Output output);

  // Ops of batches with fewer tokens are not named one by one when they fail: it would cost them more than they take.
  void name_ops_from(int64_t tokens) { named_from_ = tokens; }

  static int64_t staging_bytes(const BatchLimits& limits, int depth);  // on the device

 private:
  struct Slot;
  void collect_oldest(const Collect& collect);
  void start_lanes();

  Device& device_;
  Stream& compute_;
  ForwardRunner& forward_;
  BatchLimits limits_;
  int64_t width_;
  std::unique_ptr<Stream> copy_;
  std::unique_ptr<DeviceClock> clock_;  // made, with the lanes, for the first batch that is traced
  Timeline::Lane *device_lane_ = nullptr, *copy_lane_ = nullptr, *back_lane_ = nullptr;
  std::unique_ptr<SmallBatches> small_;
  std::vector<std::unique_ptr<Slot>> slots_;
  size_t next_ = 0, in_flight_ = 0;
  int64_t named_from_ = 0;
  double busy_seconds_ = 0;
};

}  // namespace brim
