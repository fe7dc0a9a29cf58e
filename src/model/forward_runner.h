// SPDX-License-Identifier: Apache-2.0
// Runs forward passes under a memory plan. The plan comes from a dry run of the largest batch on the null device; the
// runner replays it on real memory without any allocation. Two strategies on the CPU: with many tokens, each core
// processes chunks of about 256 tokens, one layer at a time, so that the layer's packed weights stay in the shared
// cache; with few tokens, each op is split over the cores.
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

// Maximum number of sequences per batch: a text has at least four tokens.
inline int64_t most_sequences(int64_t tokens) { return std::max<int64_t>(1, tokens / 4); }

using OpTotals = std::map<std::string, memory::LifetimeRecorder::OpTotal>;

struct ForwardPlan {
  BatchLimits limits;
  Output output = Output::sequence_scores;
  ops::Precision precision = ops::Precision::fp32;
  memory::Placement whole;  // op by op: every batch on CUDA, small ones on the CPU
  // CPU, chunk by chunk:
  BatchLimits split;  // batches up to this size run op by op
  int64_t chunk_tokens = 0;
  int workers = 0;                        // 0: chunking disabled
  memory::Placement shared;               // tensors shared by all workers: hidden states, logits
  std::vector<memory::Placement> layers;  // per worker, by kind of layer
  memory::Placement last_layer;           // per worker
  double flops = 0, bytes = 0;            // for the largest batch, as computed (not nominal)
  OpTotals ops;                           // same by op; for `split` on the CPU

  const memory::Placement& largest_layer() const;
  int64_t worker_bytes() const;
  int64_t arena_bytes() const;
  memory::TagBytes arena_tags() const;  // sums to arena_bytes()
};

ForwardPlan plan_forward(const ModelShape& shape, ops::Precision precision, device::DeviceKind target, device::Isa isa,
                         int threads, BatchLimits limits, Output output);

// Runs the whole pass op by op. The result is valid until the end of the pass.
tensor::TensorView forward(Exec& exec, const Architecture& model, const Params& params, const ops::BatchView& batch,
                           Output output, AdapterRanges adapters = {});

// A batch of this size for planning, with fake addresses.
ops::BatchView describe_batch(int64_t tokens, int64_t sequences, int64_t longest);

class ForwardRunner {
 public:
  // `arena` has plan.arena_bytes() bytes, 256-byte aligned, on the stream's device. `pool`: CPU only.
  ForwardRunner(const ModelShape& shape, const Params& weights, const ForwardPlan& plan, void* arena, ThreadPool* pool);
  // The result is in the arena until the next run. `batch` views are on the stream's device. `adapters`: for texts of
  // several adapters, whose models differ only in matrices of at most the width of this one, and in their heads.
  tensor::TensorView run(device::Stream& stream, const ops::BatchView& batch, AdapterRanges adapters = {});

 private:
  tensor::TensorView run_chunked(device::CpuStream& stream, const ops::BatchView& batch, AdapterRanges adapters);
  void cut_chunks(const ops::BatchView& batch, AdapterRanges adapters);

  struct Chunk {
    int64_t first_sequence, sequences, first_row, rows, longest;
    size_t starts_at;                      // index into starts_, relative to first_row
    size_t adapters_at = 0, adapters = 0;  // in adapters_, relative to the chunk
  };
  std::unique_ptr<Architecture> model_;
  const Params& weights_;
  const ForwardPlan& plan_;
  char* arena_;
  ThreadPool* pool_;
  std::vector<Chunk> chunks_;
  std::vector<int32_t> starts_;
  std::vector<AdapterRange> adapters_;
};

// Whether a batch may have texts of several adapters of this model. Not with DeBERTa: adapters change its projections
// for distances, which are computed once per batch.
bool batches_adapters(const ModelShape& shape, Output output);

}  // namespace brim::model
