// SPDX-License-Identifier: Apache-2.0
// Runs the batches of all models on one device. Arena, staging and streams are shared, so that models which take turns
// hold little more than their weights. Each batch is staged in page-locked memory, copied, computed, copied back and
// collected. On the CPU a batch is done when submit() returns; on CUDA results arrive later, in order, while the next
// batches are staged. Does not decide the order of batches (scheduler.h).
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

// Launch mode of a batch. Graphs pad to their bucket, so the last digits may differ from those of ops. Results that
// must not depend on batch composition (files) use ops.
enum class Launch : uint8_t { ops, graph };

// Requirements of the largest batch of any model in a queue.
struct QueueSize {
  memory::TagBytes arena;
  int64_t staged_bytes = 0, result_bytes = 0;  // per batch in flight
  int64_t word_bytes = 0;                      // words per batch, on the host only; 0: no head reads them
  int depth = 0;                               // batches in flight
  int64_t loading_bytes = 0;                   // additional memory during a model load
  void cover(const plan::Plan& plan, const std::vector<model::ForwardPlan>& forwards, const model::ModelShape& shape);
  // Compares batch requirements; ignores loading_bytes
  bool holds(const QueueSize& needed, device::DeviceKind kind) const;
};

class DeviceQueue {
 public:
  using Collect = std::function<void(const batch::PackedBatch&, const float* result, double busy_seconds)>;
  // Allocates all memory, accounted in the device's ledger. `spares_library`: for a short run
  // (ops::spare_gemm_library).
  DeviceQueue(std::shared_ptr<device::Device> device, const QueueSize& size, bool spares_library = false);
  ~DeviceQueue();

  // close() releases the memory, the streams and the device; requires that nothing is in flight and no model is on the
  // device. open() allocates the same again for a model of `model_bytes`; if the device has too little free memory for
  // both, it throws does_not_fit and stays closed.
  void close();
  void open(int64_t model_bytes);
  bool is_open() const { return compute_ != nullptr; }
  // Whether a model of this shape and plan has run since the device was opened, so that the kernels and algorithms of
  // all its batches, or of its captured ones, are loaded.
  enum class Batches { all, captured };
  bool has_run(const model::ModelShape& shape, const plan::Plan& plan, Batches batches) const;
  void note_run(const model::ModelShape& shape, const plan::Plan& plan, Batches batches);
  void fix_algorithms();  // GEMM algorithms independent of the batch size (ops::fix_gemm_algorithms)

  device::Device& device() { return *device_; }
  device::Stream& stream() { return *compute_; }
  void* arena() const { return arena_.data(); }
  const QueueSize& size() const { return size_; }
  int64_t bytes() const { return memory_.bytes(); }

  // Takes the batch's contents by swapping them with a used batch's, so that storage is reused. `collect` is called
  // from here on the CPU, otherwise from a later call; batches are collected in submission order. If no slot is free,
  // the oldest batch is collected first. A graph is launched if one was captured for that size. The model must be
  // resident. `pass`: index of the model's forward pass. `adapters`: for texts of several adapters, see ForwardRunner;
  // such batches run op by op.
  void submit(ModelHost& model, batch::PackedBatch& batch, Collect collect, Launch launch = Launch::ops,
              size_t pass = 0, model::AdapterRanges adapters = {});
  // Whether submit() would not have to collect a batch first. Each pass of a model runs one graph at a time.
  bool has_capacity(ModelHost& model, Launch launch = Launch::ops, size_t pass = 0) const;
  size_t in_flight() const { return in_flight_; }
  // Elapsed and predicted time of the batch that the device is computing. Callable from any thread without a lock.
  struct OldestBatch {
    double seconds = 0, predicted_seconds = 0;  // 0 if none
  };
  OldestBatch oldest() const;
  bool collect_one();  // waits for the oldest batch in flight; false if none
  void finish() {      // waits for all batches in flight
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
  memory::PlannedMemory memory_;  // declared before its users
  device::DeviceBuffer arena_;
  device::DeviceBuffer block_;  // memory of all slots
  std::unique_ptr<device::Stream> compute_, copy_;
  std::unique_ptr<device::DeviceClock> clock_;  // created with the lanes for the first traced batch
  Timeline::Lane *device_lane_ = nullptr, *copy_lane_ = nullptr, *back_lane_ = nullptr;
  std::vector<std::unique_ptr<Slot>> slots_;
  size_t next_ = 0, in_flight_ = 0;
  int64_t last_done_ns_ = 0;
  std::atomic<int64_t> oldest_since_ns_{0}, oldest_predicted_ns_{0};  // 0 if none
  struct Run {
    model::ModelShape shape;
    ops::Precision precision;
    model::Output output;  // a shape with two heads supports both outputs
    int64_t tokens, sequences, longest;
    Batches batches;
    bool operator==(const Run&) const = default;
  };
  static Run run_of(const model::ModelShape& shape, const plan::Plan& plan, Batches batches);
  std::vector<Run> runs_;
  bool fixes_algorithms_ = false;
  memory::LedgerEntry context_;  // while closed: the device's share in the ledger
};

}  // namespace brim::engine
