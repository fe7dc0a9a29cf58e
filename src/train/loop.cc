// SPDX-License-Identifier: Apache-2.0
#include "train/loop.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace brim::train {

// Steps queued on the device and not yet read: one running, one waiting.
constexpr int64_t kStepsAhead = 2;

double TrainLoop::seconds() const { return seconds_at(now_ns()); }

double TrainLoop::seconds_at(int64_t time_ns) const {
  const int64_t running_ns = since_ > 0 ? std::max<int64_t>(0, time_ns - since_) : 0;
  return seconds_ + static_cast<double>(running_ns) * 1e-9;
}

void TrainLoop::read_all() {
  while (program_.unread_steps() > 0) program_.read_step();
}

bool TrainLoop::is_due(Strategy strategy, int64_t every, int64_t step) const {
  if (strategy == Strategy::no) return false;
  return strategy == Strategy::epoch ? program_.ends_epoch(step) : (step + 1) % every == 0;
}

void TrainLoop::run(int64_t first_step) {
  const int64_t total = program_.total_steps();
  since_ = now_ns();
  for (int64_t step = first_step; step < total && !stopped_early_ && !interrupted_; ++step) {
    while (program_.unread_steps() >= kStepsAhead) program_.read_step();
    if (!program_.enqueue(step)) break;
    if (program_.needs_each_step()) read_all();
    const bool last = step + 1 == total;
    const bool evaluate = program_.can_evaluate() && cadence_.evaluate != Strategy::no &&
                          (last || is_due(cadence_.evaluate, cadence_.evaluate_steps, step));
    const bool save = !last && is_due(cadence_.save, cadence_.save_steps, step);
    interrupted_ = stop_ != nullptr && stop_->load(std::memory_order_relaxed);
    if (!evaluate && !save && !interrupted_) continue;
    read_all();
    seconds_ += seconds_since(std::exchange(since_, 0));
    program_.pauses();
    if (evaluate) stopped_early_ = !program_.evaluate();
    if (save || interrupted_) program_.save();
    program_.resumes();
    since_ = now_ns();
  }
  read_all();
  seconds_ += seconds_since(std::exchange(since_, 0));
}

}  // namespace brim::train
