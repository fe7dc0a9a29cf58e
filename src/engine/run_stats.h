// SPDX-License-Identifier: Apache-2.0
// Time and memory statistics of a run. PipelineStats holds the pipeline's counters, always collected at the cost of a
// few clock reads per chunk. RunStats holds the reported values: throughput, MFU, device utilisation, memory, and the
// bottleneck. Utilisation, MFU and memory are deliberately separate numbers. Does not format reports.
#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "model/shape.h"
#include "monitor/host.h"
#include "plan/plan.h"

namespace brim::engine {

struct PipelineStats {
  int64_t rows = 0, bad_rows = 0, truncated_rows = 0, tokens = 0, batches = 0;
  int64_t file_bytes = 0;  // input bytes up to the last row passed to the sink
  double sum_squares = 0;
  double seconds = 0;             // from the first byte read to the last row passed to the sink
  double compute_seconds = 0;     // device busy
  double wait_input_seconds = 0;  // device idle, waiting for tokens
  double sink_seconds = 0;        // writer's work, including waits for the file or pipe
  double read_seconds = 0;        // reader's work, including waits for the file or pipe
  double room_seconds = 0;        // reader blocked because all chunks were in use by later stages
  double tokenize_seconds = 0;    // sum over all tokenizer threads
  double host_seconds = 0;        // compute thread's own work: packing and collecting
  int tokenizers = 0;
  // CPU time in the same span. A stage that is slow with little CPU time waits for something external.
  double read_cpu_seconds = 0, tokenize_cpu_seconds = 0, sink_cpu_seconds = 0;
  double cpu_seconds = 0;         // this process, all threads
  double other_cpu_seconds = -1;  // all other processes on the machine; negative: unknown
  double run_delay_seconds = -1;  // total time that threads were runnable without a core; negative: unknown
  int64_t major_faults = 0;       // pages read from disk or swap
};

struct RunStats {
  int64_t rows = 0, tokens = 0;
  double seconds = 0, rows_per_second = 0, tokens_per_second = 0;
  double mfu = -1;         // model FLOPs of real tokens ÷ time ÷ the device's matrix throughput; negative: unknown
  std::string mfu_note;    // " of the data sheet" if that throughput was not measured
  double device_busy = 0;  // fraction of the run in which the device computed
  int64_t planned_bytes = 0, limit_bytes = 0, token_budget = 0;
  int64_t peak_bytes = -1;  // memory of this process: on the GPU if reported, otherwise host memory; negative: unknown
  std::string held_back_by;
};

// `shape` and `plan` are null for VADER.
RunStats run_stats(const model::ModelShape* shape, const plan::Plan* plan, const PipelineStats& counted);

// Memory of this process: on its GPU (NVML, per process) or, on the CPU, its peak resident set. Negative if unknown,
// for example if the process is shared.
int64_t held_bytes(const device::Device& device);
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
