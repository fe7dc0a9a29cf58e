// SPDX-License-Identifier: Apache-2.0
// Breakdown of a training run's time, and its bottleneck. Does not measure anything itself.
#pragma once
#include <string>

#include "monitor/host.h"
#include "train/loop.h"

namespace brim::train {

// In seconds. A run consists of scoring by teachers, steps, evaluations and saving.
struct RunTime {
  double steps = 0, evaluation = 0, saving = 0;
  double busy = 0;     // part of steps: device busy
  double waited = 0;   // part of steps: loop waiting for micro-batches
  double teacher = 0;  // before the first step
  double whole() const { return teacher + steps + evaluation + saving; }
};

std::string to_text(const RunTime& time);  // "12 s: steps 6.4 s (52 %), evaluation 3.5 s (28 %), saving 2.5 s (20 %)"

// `threads`: compute threads on the CPU, 0 on a GPU.
std::string limited_by(const RunTime& time, int threads, const monitor::OtherProcesses::Load& others,
                       const Cadence& cadence);

}  // namespace brim::train
