// SPDX-License-Identifier: Apache-2.0
// The record of a run: what ran, on which device, under which plan, its counters and its progress. Summaries, the live
// view of `brim monitor`, traces, the doctor and reports read it. Unset fields are unknown. Takes no readings.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace brim::device {
class Device;
}

namespace brim::monitor {

// Counters of the scoring pipeline. A training run fills in rows, tokens and batches of its steps.
struct RunCounters {
  int64_t rows = 0, bad_rows = 0, truncated_rows = 0, tokens = 0, batches = 0;
  int64_t repeated_rows = 0;   // rows whose result was copied from a row with the same text
  int64_t repeated_bytes = 0;  // memory for that under the device's limit (on a CPU)
  int64_t file_bytes = 0;      // input bytes up to the last row passed to the sink
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
  double cpu_seconds = 0;                   // this process, all threads
  std::optional<double> other_cpu_seconds;  // all other processes on the machine
  std::optional<double> run_delay_seconds;  // total time that threads were runnable without a core
  int64_t major_faults = 0;                 // pages read from disk or swap
};

// State of the GPU during the run.
struct CardRecord {
  std::optional<int> sm_clock_mhz, max_sm_clock_mhz;  // mean while busy; maximum
  std::optional<int> unhindered_clock_mhz;            // mean while at most the power cap was active
  std::optional<double> power_w, power_limit_w;       // mean of all samples
  std::vector<std::string> throttle;   // slowdown reasons, including the power cap; excludes "idle" and similar
  std::optional<int64_t> other_bytes;  // GPU memory held by other processes
  std::optional<int> other_processes;
  bool operator==(const CardRecord&) const = default;
};

// Fields of training runs only.
struct TrainingRecord {
  int64_t steps = 0;
  std::string recompute, optimizer, token_placement;
  bool recompute_asked = false, moments_on_host = false, resumed = false;
  // Plan for the same job with all available device memory.
  std::string free_recompute, free_optimizer;
  bool free_moments_on_host = false;
  // Largest useful step under the run's limit, in tokens.
  int64_t wide_batch_tokens = 0;
  double wide_tokens_per_second = 0;
  int64_t free_planned_bytes = 0;  // memory use of that plan
  double teacher_seconds = 0;      // time of the teachers before the first step
  // Forecasting: total lanes, number of waves, and lanes that would fit at once with all device memory.
  int64_t lanes = 0, waves = 0, free_lanes = 0;
};

struct RunRecord {
  std::string verb;                      // "score", "train", "forecast train" or "forecast roll"
  std::string model, device, precision;  // model "vader": rules, computed by the tokenizer threads
  std::string precision_reason, pci_bus_id;
  bool on_card = false;
  int device_index = 0;
  std::vector<std::string> inputs;
  std::string output;
  int threads = 0;                   // compute threads on the CPU
  int cores = 0, machine_cores = 0;  // available to this process; total
  // The plan; without one (VADER), the budget and the limit are unset.
  std::optional<int64_t> token_budget, limit_bytes, planned_bytes;
  int64_t max_length = 0;
  int staging_depth = 0;
  double plan_tokens_per_second = 0;  // predicted for texts of this run's mean length; 0: no prediction
  // The same with all available device memory, which shows the cost of the limit.
  int64_t free_token_budget = 0, free_limit_bytes = 0;
  double free_tokens_per_second = 0;
  double load_seconds = 0;
  std::string others;  // "other processes used 1.3 of 2 cores (cc1plus 0.9)"
  // Results. `peak_bytes`: memory of this process, on the GPU if on_card.
  std::optional<double> mfu, device_busy;
  bool mfu_of_data_sheet = false;  // mfu is relative to an unmeasured rate
  std::optional<int64_t> peak_bytes;
  std::string held_back_by;
  // Progress of a running process. `done` is the fraction of the whole job.
  std::optional<int64_t> pid, start_unix_ns, updated_unix_ns, step, total_steps;
  std::optional<double> loss, done, seconds_left;
  std::vector<std::pair<std::string, double>> stages;  // name, fraction of the time since the start
  RunCounters stats;
  CardRecord card;
  std::optional<TrainingRecord> training;

  void set_device(const device::Device& on);  // name, bus id, kind and index
  bool trains_lanes() const { return trains() && verb.starts_with("forecast "); }
  bool trains() const { return training.has_value(); }
  std::optional<double> rows_per_second() const { return per_second(stats.rows); }
  std::optional<double> tokens_per_second() const { return per_second(stats.tokens); }
  std::optional<double> share_done() const;  // from `done`, else from the steps
  std::string device_title() const;          // "cuda:0 NVIDIA H200"
  const char* mfu_note() const { return mfu_of_data_sheet ? " of the data sheet" : ""; }

 private:
  std::optional<double> per_second(int64_t count) const {
    return stats.seconds > 0 ? std::optional(static_cast<double>(count) / stats.seconds) : std::nullopt;
  }
};

std::string to_json(const RunRecord& record);  // unset fields are null
// Throws bad_data. Fields that older versions did not write keep their defaults, and their negative numbers are unset.
RunRecord record_from_json(const std::string& json);

}  // namespace brim::monitor
