// SPDX-License-Identifier: Apache-2.0
// What a training run holds on its device and enqueues there: parameters and moments, the pass, staging, validation,
// teachers. Steps are enqueued now and read later; nothing here decides, writes a file or says a word.
#pragma once
#include <memory>
#include <vector>

#include "device/device_spans.h"
#include "device/event.h"
#include "model/train_runner.h"
#include "model/train_state.h"
#include "train/job.h"
#include "train/micro_batch.h"
#include "train/teachers.h"
#include "train/validation.h"

namespace brim::train {

// One optimizer step, read back from the device.
struct StepResult {
  int64_t step = 0;  // from 0
  int64_t rows = 0, tokens = 0;
  double sum_squares = 0, loss = 0, norm = 0, lr = 0;
  double busy_seconds = 0, teacher_seconds = 0;  // of this step: the device computed, the teachers' part of it
  std::vector<int64_t> row_ids;
};

class TrainSession {
 public:
  explicit TrainSession(TrainJob& job);  // what the parameters are is not there yet
  ~TrainSession();
  // What a pass needs, once the plan is final and the state is on the device. Decides where the tokens live.
  void open_pass();

  model::TrainState& state() { return state_; }
  device::Stream& stream() { return *stream_; }
  device::DeviceSpans* spans() { return spans_.get(); }  // of the device's work; null without a timeline
  Validator* validation() { return validation_.get(); }  // null without a validation set

  void enqueue(const MicroBatch& m, double loss_scale);  // a step begins with its first micro-batch
  void update(double lr, model::StepSettings step);      // and ends with this
  size_t unread_steps() const { return unread_.size(); }
  StepResult read();  // the oldest, when the device has done it
  void tell_copies() { stager_->tell_copies(); }

 private:
  struct Step;
  void begin_step(const MicroBatch& m);
  tensor::TensorView run_teachers(const ops::BatchView& batch);

  TrainJob& job_;
  model::TrainState state_;
  std::unique_ptr<device::Stream> stream_;
  model::TrainPassPlan pass_plan_;
  device::DeviceBuffer arena_;
  std::unique_ptr<BatchStager> stager_;
  std::unique_ptr<Validator> validation_;
  std::unique_ptr<Teachers> teachers_;
  std::unique_ptr<device::DeviceSpans> spans_;
  std::vector<std::unique_ptr<Step>> unread_, free_;
};

}  // namespace brim::train
