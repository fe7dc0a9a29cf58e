// SPDX-License-Identifier: Apache-2.0
// Device state and work of a training run: parameters, moments, pass, staging and validation. Steps are enqueued
// here and read back later. Does not make decisions, write files or report progress.
#pragma once
#include <cmath>
#include <memory>
#include <vector>

#include "device/device_spans.h"
#include "device/event.h"
#include "model/train_runner.h"
#include "model/train_state.h"
#include "train/job.h"
#include "train/micro_batch.h"
#include "train/validation.h"

namespace brim::train {

// One optimizer step, read back from the device.
struct StepResult {
  int64_t step = 0;  // from 0
  int64_t rows = 0, tokens = 0;
  double sum_squares = 0, loss = 0, norm = 0, lr = 0;
  double sequence_loss = NAN, token_loss = NAN;  // parts of loss; NaN without targets for that head
  double busy_seconds = 0;                       // device time of this step
  int64_t done_ns = 0;                           // time on the now_ns() clock when the device finished the step
  std::vector<int64_t> row_ids;
};

class TrainSession {
 public:
  explicit TrainSession(TrainJob& job);  // the parameters are not loaded yet
  ~TrainSession();
  // Allocates the pass, once the plan is final and the state is on the device. Decides where to keep the tokens.
  void open_pass();

  model::TrainState& state() { return state_; }
  device::Stream& stream() { return *stream_; }
  device::DeviceSpans* spans() { return spans_.get(); }  // spans of device work; null without a timeline
  Validator* validation() { return validation_.get(); }  // null without a validation set

  void enqueue(const MicroBatch& m, double loss_scale);  // the first micro-batch begins a step
  void update(double lr, model::StepSettings step);      // ends a step
  size_t unread_steps() const { return unread_.size(); }
  StepResult read();  // waits for the oldest step
  void report_copies() { stager_->report_copies(); }

 private:
  struct Step;
  void begin_step(const MicroBatch& m);
  int64_t done_time(Step& step);

  TrainJob& job_;
  model::TrainState state_;
  std::unique_ptr<device::Stream> stream_;
  model::TrainPassPlan pass_plan_;
  device::DeviceBuffer arena_;
  std::unique_ptr<BatchStager> stager_;
  std::unique_ptr<Validator> validation_;
  std::unique_ptr<device::DeviceSpans> spans_;
  std::vector<std::unique_ptr<Step>> unread_, free_;
  std::unique_ptr<device::Event> last_done_;  // end of the step read last
  int64_t last_done_ns_ = 0;
};

}  // namespace brim::train
