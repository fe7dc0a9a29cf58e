// SPDX-License-Identifier: Apache-2.0
// What a run reports while it goes: progress after every step, a line and a log row every logging_steps, figures for
// its observers.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "monitor/nvml.h"
#include "train/run_record.h"
#include "train/schedule.h"
#include "train/trainer.h"

namespace brim::train {

// One optimizer step, read back from the device.
struct StepReading {
  int64_t number = 0;  // from 1
  int64_t rows = 0, tokens = 0;
  double sum_squares = 0, loss = 0, norm = 0, lr = 0;
  double busy_seconds = 0, wait_seconds = 0;  // so far: the device computed, the loop waited for micro-batches
};

// What will be done, in lines for people: data, labels, rate, evaluation, device, where the tokens live.
std::vector<std::string> start_lines(const TrainJob& job, const StepSchedule& schedule);
std::string new_head_line(const TrainJob& job);  // of a job that draws one

class StepReporter {
 public:
  // `counted_bytes`: what the run counts as its own, reported where no driver knows better.
  StepReporter(const TrainJob& job, const StepSchedule& schedule, const TrainCallbacks& callbacks, RunRecord& record,
               std::function<int64_t()> counted_bytes);
  // `seconds`: of training so far, this step included.
  void step_done(const StepReading& step, double seconds);

  // What the run holds of what was planned, asked now.
  int64_t held_bytes() { return held_bytes(sample_card()); }
  int64_t samples() const { return samples_; }
  int64_t tokens() const { return tokens_; }
  // Of the tokens' flops so far, not of padding or recomputation; NaN where the device's rate is unknown.
  double mfu(double seconds) const { return mfu(tokens_, squares_, seconds); }

 private:
  double mfu(int64_t tokens, double squares, double seconds) const;
  void log_window(const StepReading& step, double seconds);
  std::optional<monitor::GpuSample> sample_card();  // absent on the CPU, and where the driver does not show the card
  int64_t held_bytes(const std::optional<monitor::GpuSample>& card) const;
  void publish(const StepReading& step, double seconds);

  const TrainJob& job_;
  const StepSchedule& schedule_;
  const TrainCallbacks& callbacks_;
  RunRecord& record_;
  std::function<int64_t()> counted_bytes_;
  std::unique_ptr<monitor::Nvml> nvml_;
  int64_t held_ = 0;  // at the last line
  int64_t samples_ = 0, tokens_ = 0, published_ns_ = 0;
  double squares_ = 0;
  double window_loss_ = 0, window_squares_ = 0, window_since_ = 0;  // since the last line
  int64_t window_steps_ = 0, window_rows_ = 0, window_tokens_ = 0;
};

}  // namespace brim::train
