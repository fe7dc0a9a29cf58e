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
  // A bucket for every size that fits `limits`, on a stream that can capture. `loaded`: kernels and algorithms are,
  // since the like was captured before: then a bucket's graph is captured with its first batch, about a millisecond;
  // else all are here, and `between` is called after each.
  SmallBatches(device::Device& device, device::Stream& stream, model::ForwardRunner& forward,
               const model::BatchLimits& limits, model::Output output, int64_t width, memory::PlannedMemory* planned,
               bool loaded, const std::function<void()>& between);
  ~SmallBatches();

  // Whether it runs as a graph, which is captured here for the first batch of its size. False also where none can be
  // captured: the card has no memory for one.
  bool takes(const batch::PackedBatch& batch);
  // Launches it without waiting; one at a time, between launch() and wait() it is running(). The tokens computed beside
  // its own.
  int64_t launch(const batch::PackedBatch& batch);
  bool running() const { return running_; }
  const float* wait();  // valid until the next launch

 private:
  struct Bucket;
  Bucket* find(const batch::PackedBatch& batch) const;
  void run(const Bucket& bucket);
  void capture(Bucket& bucket);
  bool try_capture(Bucket& bucket);  // false: it is left out; throws where the device is lost

  device::Stream& stream_;
  model::ForwardRunner& forward_;
  std::vector<std::unique_ptr<Bucket>> buckets_;  // smallest first
  device::DeviceBuffer host_, device_, result_;   // shared: one batch runs at a time
  std::unique_ptr<device::Event> done_;
  bool running_ = false;
  bool warned_ = false;  // that a size is left out
};

}  // namespace brim::engine
