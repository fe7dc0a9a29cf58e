// SPDX-License-Identifier: Apache-2.0
// When a run of optimizer steps evaluates, saves and ends: one loop for every kind of training. What a step computes,
// and what is measured, written and reported of it, is its program's.
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

  // Puts a whole step on the device and does not wait for it. False: there is no more input.
  virtual bool enqueue(int64_t step) = 0;
  virtual int64_t unread_steps() const = 0;
  virtual void read_step() = 0;              // waits for the oldest unread one and takes what it gave
  virtual bool needs_each_step() const = 0;  // before the next: where a step depends on what the last one gave

  virtual bool can_evaluate() const = 0;
  virtual bool evaluate() = 0;  // false: training on would bring nothing
  virtual void save() = 0;
  virtual void pauses() = 0;   // before either of them; the device has nothing to do
  virtual void resumes() = 0;  // after
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
  double seconds() const;  // of training so far, without evaluation and saving
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
