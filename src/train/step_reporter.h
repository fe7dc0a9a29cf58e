// SPDX-License-Identifier: Apache-2.0
// Reports a running training: progress after every step, a line and a log row every logging_steps, live figures for
// monitors. Does not write the log file itself.
#pragma once
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "monitor/nvml.h"
#include "train/schedule.h"
#include "train/train_log.h"
#include "train/trainer.h"

namespace brim::train {

// One optimizer step, read back from the device.
struct StepReading {
  int64_t number = 0;  // from 1
  int64_t rows = 0, tokens = 0;
  double sum_squares = 0, loss = 0, norm = 0, lr = 0;
  double busy_seconds = 0, wait_seconds = 0;     // totals so far: device busy, loop waiting for micro-batches
  double sequence_loss = NAN, token_loss = NAN;  // parts of loss; NaN without targets for that head
};

// Lines displayed at the start: data, labels, learning rate, evaluation, device, location of the tokens.
std::vector<std::string> start_lines(const TrainJob& job, const StepSchedule& schedule);
std::string new_head_line(const TrainJob& job);  // for a job that initializes a new head
// "23 rows/s · 297 tokens/s"
std::string speed_text(int64_t rows, int64_t tokens, double seconds);

// Mean of the finite or infinite values added; NaN values are left out.
class MeanLoss {
 public:
  void add(double loss) {
    if (std::isnan(loss)) return;
    sum_ += loss;
    ++count_;
  }
  double value() const { return count_ > 0 ? sum_ / count_ : NAN; }

 private:
  double sum_ = 0, count_ = 0;
};

class StepReporter {
 public:
  // `counted_bytes`: the run's own count of its memory, reported if the driver has no figure.
  StepReporter(const TrainJob& job, const StepSchedule& schedule, const TrainCallbacks& callbacks, TrainLog& record,
               std::function<int64_t()> counted_bytes);
  // `seconds`: training time so far, including this step.
  void step_done(const StepReading& step, double seconds);

  // Planned memory that the run currently holds.
  int64_t held_bytes() { return held_bytes(sample_card()); }
  int64_t samples() const { return samples_; }
  int64_t tokens() const { return tokens_; }
  // Based on the flops of real tokens, without padding or recomputation; unset if the device's rate is unknown.
  std::optional<double> mfu(double seconds) const { return mfu(tokens_, squares_, seconds); }

 private:
  std::optional<double> mfu(int64_t tokens, double squares, double seconds) const;
  void log_window(const StepReading& step, double seconds);
  std::optional<monitor::GpuSample> sample_card();  // nullopt on the CPU, or if the driver does not list the GPU
  int64_t held_bytes(const std::optional<monitor::GpuSample>& card) const;
  void publish(const StepReading& step, double seconds);

  const TrainJob& job_;
  const StepSchedule& schedule_;
  const TrainCallbacks& callbacks_;
  TrainLog& record_;
  std::function<int64_t()> counted_bytes_;
  std::unique_ptr<monitor::Nvml> nvml_;
  int64_t held_ = 0;  // at the last report
  int64_t samples_ = 0, tokens_ = 0, published_ns_ = 0;
  double squares_ = 0;
  double window_loss_ = 0, window_squares_ = 0, window_since_ = 0;  // since the last report
  int64_t window_steps_ = 0, window_rows_ = 0, window_tokens_ = 0;
  MeanLoss window_sequence_loss_, window_token_loss_;
};

}  // namespace brim::train
