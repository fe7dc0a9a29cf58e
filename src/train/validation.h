// SPDX-License-Identifier: Apache-2.0
// Scoring passes inside training: the validation set between steps, and a teacher's logits for distillation. Both reuse
// the forward pass that scores; logits leave the device batch by batch and are never collected there.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "device/device_spans.h"
#include "model/forward_runner.h"
#include "model/train_state.h"
#include "train/job.h"

namespace brim {

struct ValidationResult {
  std::vector<std::pair<std::string, double>> values;  // loss, accuracy, macro_f1, macro_recall, entity_f1, mean_f1
  double value(const std::string& name) const;         // throws usage for a metric this task does not have
};

class Validator {
 public:
  Validator(const TrainJob& job, const TrainState& state);
  int64_t arena_bytes() const;
  void use_arena(Stream& stream, void* arena);            // shared with training: they never run at the same time
  void use_spans(DeviceSpans* spans) { spans_ = spans; }  // told of each batch; null: nobody asks
  ValidationResult run(Stream& stream);

 private:
  struct Pass;
  void run_pass(Stream& stream, Output output,
                const std::function<void(int64_t row, const float* logits, int32_t length)>& take);
  const TrainJob& job_;
  EncoderWeights weights_;
  BatchLimits limits_;
  ForwardPlan sequence_plan_, token_plan_;
  void* arena_ = nullptr;
  DeviceSpans* spans_ = nullptr;
};

class Teacher {
 public:
  Teacher(const TrainJob& job, const std::string& dir);
  // Logits [B,K] of a batch that is on the device; they lie in the teacher's own arena.
  TensorView run(Stream& stream, const BatchView& batch);
  int64_t bytes() const { return model_->slab_bytes() + static_cast<int64_t>(arena_.bytes()); }

 private:
  std::unique_ptr<Model> model_;
  ForwardPlan plan_;
  DeviceBuffer arena_;
  std::unique_ptr<ForwardRunner> runner_;
};

}  // namespace brim
