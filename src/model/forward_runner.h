// SPDX-License-Identifier: Apache-2.0
// Runs forward passes under a memory plan. The plan is made by dry-running the pass on the null device for the largest
// batch; the runner then replays it on real memory, allocating nothing.
//
// On the CPU a pass runs one of two ways. With tokens to spare each core takes chunks of about 256 tokens through one
// layer at a time, so that the layer's packed weights stay in the shared cache. With few tokens each op splits over the
// cores.
#pragma once
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"
#include "model/architecture.h"

namespace brim {
class ThreadPool;
}  // namespace brim

namespace brim::model {

// The largest batch a plan allows.
struct BatchLimits {
  int64_t tokens = 0, sequences = 0, longest = 0;
};

// Sequences a batch must have room for: its texts have four tokens at least.
inline int64_t most_sequences(int64_t tokens) { return std::max<int64_t>(1, tokens / 4); }

using OpTotals = std::map<std::string, memory::LifetimeRecorder::OpTotal>;

struct ForwardPlan {
  BatchLimits limits;
  Output output = Output::sequence_scores;
  ops::Precision precision = ops::Precision::fp32;
  memory::Placement whole;  // op by op: every batch on CUDA, small ones on the CPU
  // CPU, chunk by chunk:
  BatchLimits split;  // batches up to this run op by op
  int64_t chunk_tokens = 0;
  int workers = 0;                        // 0: no chunked way
  memory::Placement shared;               // tensors all workers see: hidden states, logits
  std::vector<memory::Placement> layers;  // one worker's, by kind of layer
  memory::Placement last_layer;           // one worker's
  double flops = 0, bytes = 0;            // of the largest batch, as computed (not nominal)
  OpTotals ops;                           // the same by op; of `split` on the CPU

  const memory::Placement& largest_layer() const;
  int64_t worker_bytes() const;
  int64_t arena_bytes() const;
  memory::TagBytes arena_tags() const;  // sums to arena_bytes()
};

ForwardPlan plan_forward(const ModelShape& shape, ops::Precision precision, device::DeviceKind target, device::Isa isa,
                         int threads, BatchLimits limits, Output output);

// The whole pass, op by op. The result is kept to the end of the pass.
tensor::TensorView forward(Exec& exec, const Architecture& model, const Params& params, const ops::BatchView& batch,
                           Output output);

// A batch of that size as planning needs it (made-up addresses).
ops::BatchView describe_batch(int64_t tokens, int64_t sequences, int64_t longest);

class ForwardRunner {
 public:
  // `arena` has plan.arena_bytes(), 256-byte aligned, on the device the stream belongs to. `pool`: CPU only.
  ForwardRunner(const ModelShape& shape, const Params& weights, const ForwardPlan& plan, void* arena, ThreadPool* pool);
  // The result lies in the arena until the next run. `batch` views are on the stream's device.
  tensor::TensorView run(device::Stream& stream, const ops::BatchView& batch);

 private:
  tensor::TensorView run_chunked(device::CpuStream& stream, const ops::BatchView& batch);
  void cut_chunks(const ops::BatchView& batch);

  struct Chunk {
    int64_t first_sequence, sequences, first_row, rows, longest;
    size_t starts_at;  // in starts_: relative to first_row
  };
  std::unique_ptr<Architecture> model_;
  const Params& weights_;
  const ForwardPlan& plan_;
  char* arena_;
  ThreadPool* pool_;
  std::vector<Chunk> chunks_;
  std::vector<int32_t> starts_;
};

}  // namespace brim::model
