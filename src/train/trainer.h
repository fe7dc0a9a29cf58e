// SPDX-License-Identifier: Apache-2.0
// Text training: shuffled global batches, micro-batches under the plan, AdamW, evaluation, checkpoints, early stopping.
// Runs with the same seed, plan and device match bit for bit, and so do resumed runs. Does not parse settings.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
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
  std::function<void(const std::string& line)> say;  // lines for display
  // The run so far as JSON (settings, plan, data, log), after each evaluation and checkpoint and at the end.
  std::function<void(const std::string& json)> record;
  const std::atomic<bool>* stop = nullptr;
  monitor::LivePublisher* live = nullptr;  // figures for `brim monitor`
  // Called with the job before its first step and after everything is written, for the run's recorder.
  std::function<void(const TrainJob&)> begins;
  std::function<void(const TrainJob&, const TrainOutcome&)> ends;
};

struct TrainOutcome {
  int64_t steps = 0, samples = 0, tokens = 0;
  int64_t own_steps = 0, micro_batches = 0;  // in this run, which differs from the total if it was resumed
  double seconds = 0;                        // training steps only, without evaluation and checkpoints
  std::optional<double> mfu;                 // unset if the rate of the device is unknown
  std::string mfu_note;                      // " of the data sheet" if the rate was not measured
  double device_busy = 0;  // share of `seconds` from a step's first micro-batch to its update, by the device's clock
  int64_t planned_bytes = 0, held_bytes = 0, limit_bytes = 0;
  bool on_card = false;  // held_bytes is GPU memory; else the peak resident set
  RunTime time;          // whole run
  monitor::OtherProcesses::Load others;
  std::string held_back_by;
  double final_loss = 0, best_metric = 0;
  std::string best_metric_name;
  std::optional<int64_t> best_step;  // unset if nothing was evaluated
  bool stopped_early = false, interrupted = false;
};

// Trains and writes the model to settings.output_dir. Throws diverged if the loss is not finite (the batch is saved).
// An interruption is reported in the outcome, after a checkpoint.
TrainOutcome train(const TrainSettings& settings, const TrainCallbacks& callbacks);

}  // namespace brim::train
