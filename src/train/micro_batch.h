// SPDX-License-Identifier: Apache-2.0
// One micro-batch with all its integers (tokens, targets, sorted rows), built on the host ahead of time and staged to
// the device in one copy; ids and positions are cut out of the token set where that lies on the device.
#pragma once
#include <memory>
#include <vector>

#include "batch/packed_batch.h"
#include "device/device.h"
#include "device/device_spans.h"
#include "device/event.h"
#include "memory/ledger.h"
#include "model/train_runner.h"
#include "train/dataset.h"

namespace brim::train {

struct MicroBatch {
  batch::PackedBatch packed;
  std::vector<int32_t> sequence_targets, token_targets, sorted, sorted_positions;
  std::vector<float> multi_targets;
  std::vector<int64_t> begins;   // where each sequence begins in the token set
  int64_t step = 0, number = 0;  // of the optimizer step, within it
  bool last_of_step = false;
  int64_t step_micros = 1;   // micro-batches of the whole step
  int64_t step_samples = 0;  // real samples of the whole global batch, for the mean
  double step_weight = 0;    // the same with class weights
  int64_t step_tagged = 0;   // tagged tokens of the whole global batch
  int64_t epoch = 0;
};

// What a step's gradients are multiples of: one over what its means are taken over, 0 where a head has nothing to learn
// from (a huge factor instead would fill or empty fp8's scales, and multiply what weights of 0 leave of a loss).
struct StepScales {
  float sequence = 0, token = 0;
  float unit = 1;  // the larger; never 0
};
StepScales step_scales(const MicroBatch& m, const model::ModelShape& shape, double loss_scale);

void build_micro_batch(const TrainSet& set, const std::vector<int64_t>& rows, const model::ModelShape& shape,
                       MicroBatch& out);

// Views of a micro-batch on the device.
struct StagedBatch {
  ops::BatchView batch;
  model::TrainTargets targets;
  tensor::TensorView sorted, sorted_positions;
};

// A ring of staging slots. On the CPU the views point straight at the host vectors, unless the set is resident.
class BatchStager {
 public:
  // `token_set` [N] i32 on the device where the set is resident, else empty.
  BatchStager(device::Device& device, const model::ModelShape& shape, model::BatchLimits limits, int depth,
              tensor::TensorView token_set = {}, memory::PlannedMemory* planned = nullptr);
  ~BatchStager();
  // Copies to the device on a stream of its own and makes `compute` wait for it. The slot is free again `depth` calls
  // later; mark_used says when the device has read it.
  StagedBatch stage(const MicroBatch& batch, device::Stream& compute);
  void mark_used(device::Stream& compute);
  void tell_copies();  // those that have passed, to the timeline

 private:
  struct Slot;
  device::Device& device_;
  model::ModelShape shape_;
  tensor::TensorView token_set_;
  std::unique_ptr<device::Stream> copy_;
  std::unique_ptr<device::DeviceSpans> spans_;  // of copies; null without a timeline
  device::DeviceBuffer block_;                  // of all slots
  std::vector<std::unique_ptr<Slot>> slots_;
  size_t next_ = 0, current_ = 0;
};

}  // namespace brim::train
