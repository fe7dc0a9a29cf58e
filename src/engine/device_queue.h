// SPDX-License-Identifier: Apache-2.0
// Where batches run, those of every model on a device: arena, staging and streams, one for all of them, so that models
// which take turns hold little more than their weights. Keeps batches in flight: stage into page-locked memory, copy,
// compute, copy back, collect. On the CPU a batch is done when submit returns; on CUDA results arrive later, in order,
// while the next batches are staged.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "base/timeline.h"
#include "batch/packed_batch.h"
#include "device/device.h"
#include "device/event.h"
#include "memory/ledger.h"
#include "model/forward_runner.h"
#include "plan/plan.h"

namespace brim::engine {

class ModelHost;

// How a batch is launched. Graphs round up to their bucket, so that the last digits may differ from those of ops: what
// must not depend on its company (files) is launched by ops.
enum class Launch : uint8_t { ops, graph };

// What the largest batch of any of a queue's models needs.
struct QueueSize {
  memory::TagBytes arena;
  int64_t staged_bytes = 0, result_bytes = 0;  // per batch in flight
  int depth = 0;                               // batches in flight
  int64_t loading_bytes = 0;                   // held while a model is loaded
  void cover(const plan::Plan& plan, const std::vector<model::ForwardPlan>& forwards, const model::ModelShape& shape);
  bool holds(const QueueSize& needed, device::DeviceKind kind) const;  // its batches; what loading holds is not asked
};

class DeviceQueue {
 public:
  using Collect = std::function<void(const batch::PackedBatch&, const float* result, double busy_seconds)>;
  // All memory is taken here, and is part of the device's ledger.
  // `spares_library`: for a short run (ops::spare_gemm_library).
  DeviceQueue(std::shared_ptr<device::Device> device, const QueueSize& size, bool spares_library = false);
  ~DeviceQueue();

  // With nothing in flight and no model on the device: its memory, streams and the device itself are given up. open()
  // takes them again as they were, for a model of so many bytes; it throws does_not_fit, and stays closed, where the
  // device has no room for both now.
  void close();
  void open(int64_t model_bytes);
  bool is_open() const { return compute_ != nullptr; }
  // Whether a model of this shape and plan ran here since: then kernels and algorithms of its batches are loaded, or
  // those of its captured ones.
  enum class Batches { all, captured };
  bool has_run(const model::ModelShape& shape, const plan::Plan& plan, Batches batches) const;
  void note_run(const model::ModelShape& shape, const plan::Plan& plan, Batches batches);
  void fix_algorithms();  // of products, whatever a batch's size (ops::fix_gemm_algorithms)

  device::Device& device() { return *device_; }
  device::Stream& stream() { return *compute_; }
  void* arena() const { return arena_.data(); }
  const QueueSize& size() const { return size_; }
  int64_t bytes() const { return memory_.bytes(); }

  // Takes the batch's contents (swapped with a used batch's, so that storage circulates). `collect` is called from here
  // on the CPU, else from a later call; batches come back in the order they were given. With no room the oldest is
  // collected first. A graph is launched where one was captured for that size. The model is resident.
  // `pass`: which of the model's.
  void submit(ModelHost& model, batch::PackedBatch& batch, Collect collect, Launch launch = Launch::ops,
              size_t pass = 0);
  // Whether submit() would collect nothing first. One graph of a model's pass runs at a time.
  bool has_room(ModelHost& model, Launch launch = Launch::ops, size_t pass = 0) const;
  size_t in_flight() const { return in_flight_; }
  // The batch that the device computes now, for how long and for how long by prediction. Any thread, without a lock.
  struct OldestBatch {
    double seconds = 0, predicted_seconds = 0;  // 0: there is none
  };
  OldestBatch oldest() const;
  bool collect_one();  // waits for the oldest batch in flight; false if there is none
  void finish() {      // waits for all that is in flight
    while (collect_one()) {
    }
  }

 private:
  struct Slot;
  void take_memory();
  void start_lanes();
  Slot& oldest_slot() const;  // in flight
  void note_oldest(int64_t since_ns, int64_t predicted_ns);

  const std::shared_ptr<device::Device> device_;
  const QueueSize size_;
  const bool spares_library_;
  memory::PlannedMemory memory_;  // before what draws from it
  device::DeviceBuffer arena_;
  device::DeviceBuffer block_;  // of all slots
  std::unique_ptr<device::Stream> compute_, copy_;
  std::unique_ptr<device::DeviceClock> clock_;  // made, with the lanes, for the first batch that is traced
  Timeline::Lane *device_lane_ = nullptr, *copy_lane_ = nullptr, *back_lane_ = nullptr;
  std::vector<std::unique_ptr<Slot>> slots_;
  size_t next_ = 0, in_flight_ = 0;
  int64_t last_done_ns_ = 0;
  std::atomic<int64_t> oldest_since_ns_{0}, oldest_predicted_ns_{0};  // since 0: there is none
  struct Run {
    model::ModelShape shape;
    ops::Precision precision;
    model::Output output;  // of two heads the shape has both
    int64_t tokens, sequences, longest;
    Batches batches;
    bool operator==(const Run&) const = default;
  };
  static Run run_of(const model::ModelShape& shape, const plan::Plan& plan, Batches batches);
  std::vector<Run> runs_;
  bool fixes_algorithms_ = false;
  memory::LedgerEntry context_;  // while it is closed: what the ledger held for the device
};

}  // namespace brim::engine
