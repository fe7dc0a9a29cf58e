// SPDX-License-Identifier: Apache-2.0
// Row selection and learning rate of each optimizer step, as pure functions of settings, data size and step. Does not
// read any data.
#pragma once
#include <cstdint>
#include <vector>

#include "train/dataset.h"
#include "train/settings.h"

namespace brim::train {

// Rows per update; if batch_tokens is set, as many rows of this average length as it holds.
int64_t rows_of_step(const TrainSettings& settings, double tokens_per_row);
// Learning rate after scaling by the rows per step (lr_scaling).
double scaled_learning_rate(const TrainSettings& settings, int64_t rows);
int64_t warmup_of(const TrainSettings& settings, int64_t total);  // in steps
// Learning rate at `step` (0 for the first) of `total`; `peak` is the scaled rate.
double learning_rate_at(const TrainSettings& settings, double peak, int64_t step, int64_t total);

class StepSchedule {
 public:
  StepSchedule(const TrainSettings& settings, const TrainSet& set);
  int64_t total_steps() const { return total_; }
  double peak_learning_rate() const { return peak_; }
  // Rows of a step. Steps are mostly requested in order, so the order of the current epoch is cached.
  std::vector<int64_t> rows(int64_t step);
  int64_t epoch_of(int64_t step) const;
  double epochs_done(int64_t steps) const;
  bool ends_epoch(int64_t step) const;  // whether the step is the last of its epoch

 private:
  std::vector<int64_t> step_begins(const std::vector<int64_t>& order) const;  // in an epoch, plus its end
  const TrainSettings& settings_;
  const TrainSet& set_;
  int64_t total_ = 0;
  double peak_ = 0;
  std::vector<int64_t> first_step_;  // first step of each epoch, plus the end
  int64_t cached_epoch_ = -1;
  std::vector<int64_t> order_, begins_;
};

}  // namespace brim::train
