// SPDX-License-Identifier: Apache-2.0
// Training, as `brim train` does it: the same settings by the same names, the same files, the same bits.
//
//   brim::TrainListener quiet;
//   brim::run_training({{{"model", "roberta-base"}, {"train", "a.csv"}, {"output_dir", "out"}}}, quiet);
#pragma once
#include <cstdint>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "brim/error.h"

namespace brim {

struct TrainSpec {
  // By name and value, as docs/training.md lists them; one that takes several values (`train`) comes again.
  std::vector<std::pair<std::string, std::string>> settings;
};

// Hears of a run on the thread that trains: hand on and return.
class BRIM_API TrainListener {
 public:
  virtual ~TrainListener();
  virtual void progress(double done, double total, std::string_view text);  // in steps
  virtual void line(std::string_view text);                                 // for people
};

struct TrainReport {
  int64_t steps = 0, samples = 0, tokens = 0;
  double seconds = 0;  // of training steps
  double final_loss = 0, best_metric = 0;
  std::string best_metric_name, limited_by;
  int64_t best_step = -1;  // negative: nothing was evaluated
  int64_t planned_bytes = 0, held_bytes = 0, limit_bytes = 0;
  bool stopped_early = false;
  bool interrupted = false;  // by `stop`: a checkpoint is written, and `resume_from_checkpoint=last` goes on
};

// Trains and writes model, log and report to `output_dir`. Throws Error: usage, bad_data, does_not_fit, diverged, …
BRIM_API TrainReport run_training(const TrainSpec& spec, TrainListener& listener, std::stop_token stop = {});

}  // namespace brim
