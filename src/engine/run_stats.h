// SPDX-License-Identifier: Apache-2.0
// What a run did with its time and memory. PipelineStats is what the pipeline counts as it goes, on or off trace: a few
// clock reads a chunk. RunStats is what people ask for: speed, MFU, device busy, memory, and the one thing that held
// the run back. Utilisation (busy), MFU and memory are three different numbers on purpose.
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
  int64_t file_bytes = 0;  // of the input's files, up to the last row handed to the sink
  double sum_squares = 0;
  double seconds = 0;             // first byte read to last row handed to the sink
  double compute_seconds = 0;     // device busy
  double wait_input_seconds = 0;  // compute idle for want of tokens
  double sink_seconds = 0;        // the writer's work, waits of the file or pipe included
  double read_seconds = 0;        // the reader's work, waits of the file or pipe included
  double room_seconds = 0;        // the reader stood still because every chunk was in use further down
  double tokenize_seconds = 0;    // all tokenizer threads together
  double host_seconds = 0;        // the compute thread's own work: packing and collecting
  int tokenizers = 0;
  // CPU time in the same span. A stage that is slow without using its core waits for something outside.
  double read_cpu_seconds = 0, tokenize_cpu_seconds = 0, sink_cpu_seconds = 0;
  double cpu_seconds = 0;         // this process, all threads
  double other_cpu_seconds = -1;  // all other processes of the machine; negative: unknown
  double run_delay_seconds = -1;  // threads that were ready and had no core, summed; negative: unknown
  int64_t major_faults = 0;       // pages fetched from disk or swap
};

struct RunStats {
  int64_t rows = 0, tokens = 0;
  double seconds = 0, rows_per_second = 0, tokens_per_second = 0;
  double mfu = -1;         // model flops of real tokens ÷ time ÷ the device's matrix rate; negative: unknown
  std::string mfu_note;    // where that rate was not measured: " of the data sheet"
  double device_busy = 0;  // share of the run in which the device computed
  int64_t planned_bytes = 0, limit_bytes = 0, token_budget = 0;
  int64_t peak_bytes =
      -1;  // held by this process: on the card where it says so, else in host memory; negative: unknown
  std::string held_back_by;
};

// `shape` and `plan` null: VADER.
RunStats run_stats(const model::ModelShape* shape, const plan::Plan* plan, const PipelineStats& counted);

// What this process holds: on its card (NVML, by process) or, computing on the CPU, its peak resident set. Negative:
// unknown, as where others share the process.
int64_t held_bytes(const device::Device& device);
void open_card_counters();  // what held_bytes() asks about a card, to the end of the process: each time takes long
// Starts the peak of the resident set anew, so that models measured one after another do not share it.
void reset_peak_resident();

// CPU time and waiting, read from the kernel at the start and the end of a span.
struct CpuClock {
  static double thread_seconds();  // of the calling thread
  static double process_seconds();
  static double machine_seconds();   // busy time of all cores; negative: unknown
  static double thread_run_delay();  // time the calling thread was ready but had no core; negative: unknown
  static std::map<int, double> task_run_delays();  // the same of every thread of this process, by thread id
  static int64_t major_faults();
};

}  // namespace brim::engine
