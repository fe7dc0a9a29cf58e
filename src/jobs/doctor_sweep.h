// SPDX-License-Identifier: Apache-2.0
// The doctor's walk along a run's timeline: at every moment, who was at work, and where the device was not, who kept it
// waiting.
#pragma once
#include <array>
#include <cstdint>

#include "jobs/doctor.h"

namespace brim::jobs {

constexpr size_t index_of(Cause cause) { return static_cast<size_t>(cause); }

// Sums over the run, and idle time by cause.
struct Swept {
  int64_t begin_ns = 0, end_ns = 0, first_busy_ns = -1, last_busy_ns = -1;
  double busy = 0, idle = 0;
  double read = 0, tokenize = 0, host = 0, launch = 0, copy = 0, write = 0;  // work of the stages, seconds
  double first_tokenize = 0;
  double crowded = 0;  // thread-seconds by which our own threads outnumbered the cores
  int64_t chunks = 0;
  // Training: micro-batches are made beside the device, evaluations and checkpoints stop it.
  double pack = 0, evaluate = 0, evaluate_busy = 0, save = 0;
  int64_t evaluations = 0, saves = 0;
  double evaluating = 0, saving = 0;  // of the run's time; the rest are its steps
  std::array<double, index_of(Cause::count)> charged = {}, before = {},
                                             after = {};  // all; before the first batch; after the last
  double seconds() const { return static_cast<double>(end_ns - begin_ns) * 1e-9; }
};

Swept sweep(const RunTrace& trace);

}  // namespace brim::jobs
