// SPDX-License-Identifier: Apache-2.0
// Which rows each optimizer step sees, and its learning rate: pure functions of settings, data size and step.
#pragma once
#include <cstdint>
#include <vector>

#include "train/dataset.h"
#include "train/settings.h"

namespace brim::train {

// Rows an update is made from; where batch_tokens counts tokens, as many as those hold of rows this long on average.
int64_t rows_of_step(const TrainSettings& settings, double tokens_per_row);
// Learning rate after scaling with the rows of a step (lr_scaling).
double scaled_learning_rate(const TrainSettings& settings, int64_t rows);
int64_t warmup_of(const TrainSettings& settings, int64_t total);  // its steps
// At `step` (0 for the first) of `total`, where `peak` is the scaled rate.
double learning_rate_at(const TrainSettings& settings, double peak, int64_t step, int64_t total);

class StepSchedule {
 public:
  StepSchedule(const TrainSettings& settings, const TrainSet& set);
  int64_t total_steps() const { return total_; }
  double peak_learning_rate() const { return peak_; }
  // Rows of a step; steps are asked for in order mostly, an epoch's order is kept.
  std::vector<int64_t> rows(int64_t step);
  int64_t epoch_of(int64_t step) const;
  double epochs_done(int64_t steps) const;
  bool ends_epoch(int64_t step) const;  // the step is its epoch's last

 private:
  std::vector<int64_t> step_begins(const std::vector<int64_t>& order) const;  // of an epoch, with its end
  const TrainSettings& settings_;
  const TrainSet& set_;
  int64_t total_ = 0;
  double peak_ = 0;
  std::vector<int64_t> first_step_;  // of each epoch; one more at the end
  int64_t cached_epoch_ = -1;
  std::vector<int64_t> order_, begins_;
};

}  // namespace brim::train
