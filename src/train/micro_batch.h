// SPDX-License-Identifier: Apache-2.0
// Builds micro-batches (tokens, targets, sorted rows) on the host ahead of time and stages each to the device in one
// copy. If the token set is resident on the device, ids and positions are gathered there instead. Does not choose the
// rows.
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
#include "train/soft_labels.h"

namespace brim::train {

struct MicroBatch {
  batch::PackedBatch packed;
  std::vector<int32_t> sequence_targets, token_targets, sorted, sorted_positions;
  std::vector<float> multi_targets;
  std::vector<float> soft_targets;  // [sequences, classes] with teachers
  std::vector<int64_t> begins;      // offset of each sequence in the token set
  int64_t step = 0, number = 0;     // optimizer step, index of this micro-batch in it
  bool last_of_step = false;
  int64_t step_micros = 1;  // micro-batches in this step
  double step_weight = 0;   // class weights of the samples in the global batch, for the mean
  int64_t step_tagged = 0;  // tagged tokens in the global batch
  int64_t epoch = 0;
};

// Gradient scales of a step: the reciprocals of the denominators of its means, or 0 if a head has no targets. A huge
// factor instead would saturate or zero fp8's scales, and amplify the loss residue of zero weights.
struct StepScales {
  float sequence = 0, token = 0;
  float unit = 1;  // the larger one; never 0
};
StepScales step_scales(const MicroBatch& m, const model::ModelShape& shape, double loss_scale);

void build_micro_batch(const TrainSet& set, const SoftLabels& soft, const std::vector<int64_t>& rows,
                       const model::ModelShape& shape, MicroBatch& out);

// Views of a micro-batch on the device.
struct StagedBatch {
  ops::BatchView batch;
  model::TrainTargets targets;
  tensor::TensorView sorted, sorted_positions;
};

// Ring of staging slots. On the CPU, the views point directly at the host vectors unless the set is resident.
class BatchStager {
 public:
  // `token_set` [N] i32 is on the device if the set is resident, else empty.
  // `soft_labels`: batches have some.
  BatchStager(device::Device& device, const model::ModelShape& shape, model::BatchLimits limits, int depth,
              bool soft_labels = false, tensor::TensorView token_set = {}, memory::PlannedMemory* planned = nullptr);
  ~BatchStager();
  // Copies to the device on a separate stream and makes `compute` wait for it. The slot is reused `depth` calls later;
  // mark_used records when the device has read it.
  StagedBatch stage(const MicroBatch& batch, device::Stream& compute);
  void mark_used(device::Stream& compute);
  void report_copies();  // reports finished copies to the timeline

 private:
  struct Slot;
  device::Device& device_;
  model::ModelShape shape_;
  tensor::TensorView token_set_;
  std::unique_ptr<device::Stream> copy_;
  std::unique_ptr<device::DeviceSpans> spans_;  // spans of copies; null without a timeline
  device::DeviceBuffer block_;                  // memory of all slots
  std::vector<std::unique_ptr<Slot>> slots_;
  size_t next_ = 0, current_ = 0;
};

}  // namespace brim::train
