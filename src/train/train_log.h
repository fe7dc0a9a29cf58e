// SPDX-License-Identifier: Apache-2.0
// Writes a run's records next to its model: train_log.jsonl line by line, trainer_state.json in Hugging Face's layout,
// and a model card. On resume, the log is truncated to the state of the checkpoint, so that it reads like that of an
// uninterrupted run. Does not write weights.
#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "train/job.h"

namespace brim::train {

// A log line: numbers by name, in display order. NaN means "not available" and is written as null.
using LogRow = std::vector<std::pair<std::string, double>>;

// Progress of a run, as written to its files.
struct RunFacts {
  int64_t step = 0, total_steps = 0, best_step = -1;
  double epoch = 0, best_metric = 0;
  double seconds_before = 0;        // training time of the parts before the resume
  double seconds = 0;               // training time since the start or the resume
  int64_t samples = 0, tokens = 0;  // same
  std::string metric;               // selects the best model
};

class TrainLog {
 public:
  explicit TrainLog(const TrainJob& job);
  ~TrainLog();
  // `state_json`: contents of trainer_state.json in the checkpoint to resume from; empty for a new run. Starts
  // train_log.jsonl.
  void open(const std::string& state_json);
  void add(const LogRow& row);                           // throws cannot_write
  std::string state_json(const RunFacts& facts) const;   // trainer_state.json
  std::string report_json(const RunFacts& facts) const;  // same, with data, settings and plan, for report.html
  std::string card(const RunFacts& facts) const;         // README.md

 private:
  struct Log;
  const TrainJob& job_;
  std::unique_ptr<Log> log_;
};

}  // namespace brim::train
