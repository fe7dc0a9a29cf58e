// SPDX-License-Identifier: Apache-2.0
// Where a training run's time went, and what limited it.
#pragma once
#include <string>

#include "monitor/host.h"

namespace brim::train {

// Seconds. The run is its steps, its evaluations and its saving.
struct RunTime {
  double steps = 0, evaluation = 0, saving = 0;
  double busy = 0;     // of the steps: the device computed, the teacher's passes included
  double waited = 0;   // of the steps: the loop waited for micro-batches
  double teacher = 0;  // of busy
  double whole() const { return steps + evaluation + saving; }
};

std::string to_text(const RunTime& time);  // "12 s: steps 6.4 s (52 %), evaluation 3.5 s (28 %), saving 2.5 s (20 %)"

// `threads`: that compute on the CPU, 0 on a card.
std::string limited_by(const RunTime& time, int threads, const monitor::OtherProcesses::Load& others);

}  // namespace brim::train
