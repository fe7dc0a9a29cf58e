// SPDX-License-Identifier: Apache-2.0
// What a run leaves in words and numbers beside its model: train_log.jsonl line by line, trainer_state.json in Hugging
// Face's layout, and a model card. After a crash the log is cut back to what the checkpoint knows, so that a resumed
// run's log reads as if it had never stopped.
#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "train/job.h"

namespace brim::train {

// One line of the log: numbers by name, in the order they are shown. NaN is "not available", written as null.
using LogRow = std::vector<std::pair<std::string, double>>;

// Where a run stands, as its files tell it.
struct RunFacts {
  int64_t step = 0, total_steps = 0, best_step = -1;
  double epoch = 0, best_metric = 0, seconds = 0;
  int64_t samples = 0, tokens = 0;  // since it was begun or resumed
  std::string metric;               // what decides on the best model
};

class RunRecord {
 public:
  explicit RunRecord(const TrainJob& job);
  ~RunRecord();
  // `state_json`: trainer_state.json's text of the checkpoint gone on from; empty for a new run. Starts
  // train_log.jsonl.
  void open(const std::string& state_json);
  void add(const LogRow& row);                           // throws cannot_write
  std::string state_json(const RunFacts& facts) const;   // trainer_state.json
  std::string report_json(const RunFacts& facts) const;  // the same with data, settings and plan, for report.html
  std::string card(const RunFacts& facts) const;         // README.md

 private:
  struct Log;
  const TrainJob& job_;
  std::unique_ptr<Log> log_;
};

}  // namespace brim::train
