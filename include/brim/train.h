// SPDX-License-Identifier: Apache-2.0
// Training like `brim train`: same setting names, same files, bitwise equal results. Does not cover forecasting.
//
//   brim::TrainListener quiet;
//   brim::run_training({{{"model", "roberta-base"}, {"train", "a.csv"}, {"output_dir", "out"}}}, quiet);
#pragma once
#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "brim/error.h"

namespace brim {

struct TrainSpec {
  // Names and values as listed in docs/training-settings.md; settings with several values (`train`) are repeated.
  std::vector<std::pair<std::string, std::string>> settings;
};

// Called on the training thread; must not block.
class BRIM_API TrainListener {
 public:
  virtual ~TrainListener();
  virtual void progress(double done, double total, std::string_view text);  // in steps
  virtual void line(std::string_view text);                                 // human-readable
};

struct TrainReport {
  int64_t steps = 0, samples = 0, tokens = 0;
  double seconds = 0;  // total time of training steps
  double final_loss = 0;
  double best_metric = 0;  // at best_step
  std::string best_metric_name, limited_by;
  std::optional<int64_t> best_step;  // unset if nothing was evaluated
  int64_t planned_bytes = 0, held_bytes = 0, limit_bytes = 0;
  bool stopped_early = false;
  bool interrupted = false;  // stopped by `stop`: a checkpoint is written; continue with `resume_from_checkpoint=last`
};

// Trains and writes model, log and report to `output_dir`. Throws Error: usage, bad_data, does_not_fit, diverged, …
BRIM_API TrainReport run_training(const TrainSpec& spec, TrainListener& listener, std::stop_token stop = {});

}  // namespace brim
