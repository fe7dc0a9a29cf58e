// SPDX-License-Identifier: Apache-2.0
// Captured graphs for small batches. A single text is launch-bound: a hundred kernels of a few microseconds each. Each
// bucket of tokens and sequences has one graph with copy in, forward pass and copy back in one launch. A batch is
// padded to its bucket; the padding rows are computed and never read. Large batches run op by op instead
// (device_queue.h).
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
  // Creates a bucket for every size that fits `limits`, on a stream that can capture. `loaded`: kernels and algorithms
  // are already loaded by an earlier capture, so each graph is captured with its first batch, in about a millisecond;
  // otherwise all are captured here, and `between` is called after each.
  SmallBatches(device::Device& device, device::Stream& stream, model::ForwardRunner& forward,
               const model::BatchLimits& limits, model::Output output, int64_t width, memory::PlannedMemory* planned,
               bool loaded, const std::function<void()>& between);
  ~SmallBatches();

  // Whether the batch runs as a graph, which is captured here for the first batch of its size. False also if the
  // capture fails because the GPU has too little memory.
  bool takes(const batch::PackedBatch& batch);
  // Launches the batch without waiting; only one runs at a time, between launch() and wait() running() is true. Returns
  // the number of padding tokens computed.
  int64_t launch(const batch::PackedBatch& batch);
  bool running() const { return running_; }
  const float* wait();  // valid until the next launch

 private:
  struct Bucket;
  Bucket* find(const batch::PackedBatch& batch) const;
  void run(const Bucket& bucket);
  void capture(Bucket& bucket);
  bool try_capture(Bucket& bucket);  // false if the size has no graph; throws if the device is lost

  device::Stream& stream_;
  model::ForwardRunner& forward_;
  std::vector<std::unique_ptr<Bucket>> buckets_;  // smallest first
  device::DeviceBuffer host_, device_, result_;   // shared: one batch runs at a time
  std::unique_ptr<device::Event> done_;
  bool running_ = false;
  bool warned_ = false;  // about a size without a graph
};

}  // namespace brim::engine
