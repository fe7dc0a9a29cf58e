// SPDX-License-Identifier: Apache-2.0
// Sweeps over a run's timeline and records, for every moment, the active stages and, if the device was idle, the stage
// that kept it waiting.
#pragma once
#include <array>
#include <cstdint>

#include "jobs/doctor.h"

namespace brim::jobs {

constexpr size_t index_of(Cause cause) { return static_cast<size_t>(cause); }

// Sums over the run, and idle time by cause.
struct TimelineSummary {
  int64_t begin_ns = 0, end_ns = 0, first_busy_ns = -1, last_busy_ns = -1;
  double busy = 0, idle = 0;
  double read = 0, tokenize = 0, host = 0, launch = 0, copy = 0, write = 0;  // work of the stages in seconds
  double first_tokenize = 0;
  double crowded = 0;  // thread-seconds by which this process's threads outnumbered the cores
  int64_t chunks = 0;
  // Training: micro-batches are made concurrently with the device; evaluations and checkpoints stop it.
  double pack = 0, evaluate = 0, evaluate_busy = 0, save = 0;
  int64_t evaluations = 0, saves = 0;
  double evaluating = 0, saving = 0;  // share of the run time; the rest are its steps
  std::array<double, index_of(Cause::count)> charged = {}, before = {},
                                             after = {};  // total; before the first batch; after the last
  double seconds() const { return static_cast<double>(end_ns - begin_ns) * 1e-9; }
};

TimelineSummary sweep(const RunTrace& trace);

}  // namespace brim::jobs
