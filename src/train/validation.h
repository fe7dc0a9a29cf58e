// SPDX-License-Identifier: Apache-2.0
// Evaluates the validation set between steps with the inference forward pass. Logits are copied from the device per
// batch. Does not collect them on the device.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "device/device_spans.h"
#include "model/forward_runner.h"
#include "model/train_state.h"
#include "model/validation_plan.h"
#include "train/job.h"

namespace brim::train {

struct ValidationResult {
  std::vector<std::pair<std::string, double>> values;  // loss, accuracy, macro_f1, …; mse, pearson, spearman
  double value(const std::string& name) const;         // throws a usage error for a metric this task does not have
};

class Validator {
 public:
  Validator(const TrainJob& job, const model::TrainState& state);
  int64_t arena_bytes() const { return plan_.arena_bytes(); }
  void use_arena(void* arena) { arena_ = arena; }  // shared with training, which never runs at the same time
  void use_spans(device::DeviceSpans* spans) { spans_ = spans; }  // receives a span per batch; null: disabled
  ValidationResult run(device::Stream& stream);

 private:
  struct Pass;
  void evaluate_classes(device::Stream& stream, ValidationResult& result);  // and regression
  void evaluate_tags(device::Stream& stream, ValidationResult& result);
  void run_pass(device::Stream& stream, model::Output output,
                const std::function<void(int64_t row, const float* logits, int32_t length)>& take);
  const TrainJob& job_;
  const model::Params& weights_;
  model::ValidationPlan plan_;
  void* arena_ = nullptr;
  device::DeviceSpans* spans_ = nullptr;
};

}  // namespace brim::train
