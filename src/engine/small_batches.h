// SPDX-License-Identifier: Apache-2.0
// A single text is launch-bound: a hundred kernels of a few microseconds each. Small batches therefore run as captured
// graphs, one for each bucket of tokens and sequences: copy in, forward pass and copy back in one launch. A batch
// rounds up to its bucket; the tail's rows are computed and never read.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "batch/packed_batch.h"
#include "device/device.h"
#include "device/event.h"
#include "device/graph.h"
#include "memory/ledger.h"
#include "model/forward_runner.h"

namespace brim::engine {

class SmallBatches {
 public:
  // Captures every bucket that fits `limits`, on a stream that can capture; about a millisecond each, and `between` is
  // called after each. `loaded`: kernels and algorithms of every bucket are, since the like was captured before.
  SmallBatches(device::Device& device, device::Stream& stream, model::ForwardRunner& forward,
               const model::BatchLimits& limits, model::Output output, int64_t width, memory::PlannedMemory* planned,
               bool loaded, const std::function<void()>& between);
  ~SmallBatches();

  bool takes(const batch::PackedBatch& batch) const { return find(batch) != nullptr; }
  // Launches it without waiting; one at a time, between launch() and wait() it is running(). The tokens computed beside
  // its own.
  int64_t launch(const batch::PackedBatch& batch);
  bool running() const { return running_; }
  const float* wait();  // valid until the next launch

 private:
  struct Bucket;
  Bucket* find(const batch::PackedBatch& batch) const;

  device::Stream& stream_;
  std::vector<std::unique_ptr<Bucket>> buckets_;  // smallest first
  device::DeviceBuffer host_, device_, result_;   // shared: one batch runs at a time
  std::unique_ptr<device::Event> done_;
  bool running_ = false;
};

}  // namespace brim::engine
