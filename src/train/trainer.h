// SPDX-License-Identifier: Apache-2.0
// The training loop: shuffled global batches, micro-batches under the plan, AdamW, evaluation, checkpoints, early
// stopping. Same seed, plan and device give bitwise the same run; a resumed run goes on bit for bit.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "monitor/host.h"
#include "monitor/live.h"
#include "train/run_time.h"
#include "train/settings.h"

namespace brim::train {

struct TrainJob;
struct TrainOutcome;

struct TrainCallbacks {
  std::function<void(double done, double total, const std::string& text)> progress;
  std::function<void(const std::string& line)> say;  // plain lines for people
  // The run so far as JSON (settings, plan, data, log) whenever there is something new to plot: evaluations,
  // checkpoints, the end.
  std::function<void(const std::string& json)> record;
  const std::atomic<bool>* stop = nullptr;
  monitor::LivePublisher* live = nullptr;  // figures for `brim monitor`
  // The job as it runs: before its first step, and when all is written; for the run's recorder.
  std::function<void(const TrainJob&)> begins;
  std::function<void(const TrainJob&, const TrainOutcome&)> ends;
};

struct TrainOutcome {
  int64_t steps = 0, samples = 0, tokens = 0;
  int64_t own_steps = 0, micro_batches = 0;  // of this run: a resumed one has not done all steps
  double seconds = 0;                        // of training steps, evaluation and checkpoints excluded
  double mfu = -1;                           // negative: the device's rate is unknown
  std::string mfu_note;                      // where that rate was not measured: " of the data sheet"
  double device_busy =
      0;  // share of `seconds` from a step's first micro-batch to its update, by the device's own clock
  int64_t planned_bytes = 0, held_bytes = 0, limit_bytes = 0;
  bool on_card = false;  // held on a card; else the peak of the resident set
  RunTime time;          // of the whole run
  monitor::OtherProcesses::Load others;
  std::string held_back_by;
  double final_loss = 0, best_metric = 0;
  std::string best_metric_name;
  int64_t best_step = -1;
  bool stopped_early = false, interrupted = false;
};

// Trains and writes the model to settings.output_dir. Throws diverged when the loss is no number (the batch is saved),
// interrupted is told in the outcome after a checkpoint.
TrainOutcome train(const TrainSettings& settings, const TrainCallbacks& callbacks);

}  // namespace brim::train
