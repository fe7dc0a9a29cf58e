// SPDX-License-Identifier: Apache-2.0
// Training loop shared by all kinds of training: decides when to evaluate, save and stop. The TrainProgram computes,
// measures and reports the steps.
#pragma once
#include <atomic>
#include <cstdint>

#include "train/settings.h"

namespace brim::train {

class TrainProgram {
 public:
  virtual ~TrainProgram() = default;
  virtual int64_t total_steps() const = 0;
  virtual bool ends_epoch(int64_t step) const = 0;

  // Queues a whole step on the device without waiting for it. Returns false if there is no more input.
  virtual bool enqueue(int64_t step) = 0;
  virtual int64_t unread_steps() const = 0;
  virtual void read_step() = 0;              // waits for the oldest unread step and takes its result
  virtual bool needs_each_step() const = 0;  // true if a step depends on the previous one's result

  virtual bool can_evaluate() const = 0;
  virtual bool evaluate() = 0;  // false: stop early
  virtual void save() = 0;
  virtual void pauses() = 0;   // called before evaluate() and save(), while the device is idle
  virtual void resumes() = 0;  // called after them
};

struct Cadence {
  Strategy evaluate = Strategy::no, save = Strategy::no;
  int64_t evaluate_steps = 0, save_steps = 0;
};

class TrainLoop {
 public:
  TrainLoop(TrainProgram& program, const Cadence& cadence, const std::atomic<bool>* stop)
      : program_(program), cadence_(cadence), stop_(stop) {}

  void run(int64_t first_step);
  double seconds() const;                    // training time so far, without evaluation and saving
  double seconds_at(int64_t time_ns) const;  // training time up to a moment since the last pause
  bool stopped_early() const { return stopped_early_; }
  bool interrupted() const { return interrupted_; }

 private:
  bool is_due(Strategy strategy, int64_t every, int64_t step) const;
  void read_all();

  TrainProgram& program_;
  const Cadence cadence_;
  const std::atomic<bool>* const stop_;
  double seconds_ = 0;
  int64_t since_ = 0;  // 0: paused
  bool stopped_early_ = false, interrupted_ = false;
};

}  // namespace brim::train
