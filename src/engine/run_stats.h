// SPDX-License-Identifier: Apache-2.0
// Time and memory statistics of a run: the pipeline's counters, always collected at the cost of a few clock reads per
// chunk, and the record derived from them. Utilisation, MFU and memory are deliberately separate numbers. Does not
// format reports.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "model/shape.h"
#include "monitor/host.h"
#include "monitor/run_record.h"
#include "plan/plan.h"

namespace brim::engine {

using PipelineStats = monitor::RunCounters;

// The record of a run with these counters: throughput, MFU, device utilisation, plan and bottleneck. `shape` and `plan`
// are null for VADER.
monitor::RunRecord record_of(const model::ModelShape* shape, const plan::Plan* plan, const PipelineStats& counted);

// Memory of this process: on its GPU (NVML, per process) or, on the CPU, its peak resident set. Unknown, for example,
// if the process is shared.
std::optional<int64_t> held_bytes(const device::Device& device);
void open_card_counters();  // keeps the NVML handle of held_bytes() open until exit: opening is slow
// Resets the peak of the resident set, so that models measured in sequence do not share it.
void reset_peak_resident();

// CPU time and run delay, read from the kernel at the start and the end of a span.
struct CpuClock {
  static double thread_seconds();  // calling thread
  static double process_seconds();
  static double machine_seconds();   // busy time of all cores; negative: unknown
  static double thread_run_delay();  // time the calling thread was runnable without a core; negative: unknown
  static std::map<int, double> task_run_delays();  // same for every thread of this process, by thread id
  static int64_t major_faults();
};

}  // namespace brim::engine
