// SPDX-License-Identifier: Apache-2.0
// Input of the doctor: the zones of a run's stages by lane, and a record of model, device, plan and counters. `--trace
// run.json` writes both into one Chrome/Perfetto file (the record under otherData.brim), so that a run can be diagnosed
// later and on another machine.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/timeline.h"
#include "engine/engine.h"
#include "engine/run_stats.h"
#include "monitor/nvml.h"

namespace brim::jobs {

// State of the GPU during the run; missing readings are negative or empty.
struct CardRecord {
  int sm_clock_mhz = -1, max_sm_clock_mhz = -1;  // mean while busy; maximum
  int unhindered_clock_mhz = -1;                 // mean while at most the power cap was active
  double power_w = -1, power_limit_w = -1;       // mean of all samples
  std::vector<std::string> throttle;  // slowdown reasons, including the power cap; excludes "idle" and similar
  int64_t other_bytes = -1;           // GPU memory held by other processes
  int other_processes = -1;
  bool operator==(const CardRecord&) const = default;
};

// Fields of training runs only.
struct TracedTraining {
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
  double teacher_seconds = 0;      // step time spent in the teacher's passes
  // Forecasting: total lanes, number of waves, and lanes that would fit at once with all device memory.
  int64_t lanes = 0, waves = 0, free_lanes = 0;
};

struct TracedRun {
  std::string verb;                      // "score", "train", "forecast train" or "forecast roll"
  std::string model, device, precision;  // model "vader": rules, computed by the tokenizer threads
  bool on_card = false;
  int device_index = 0;
  std::vector<std::string> inputs;
  std::string output;
  int threads = 0;                   // compute threads on the CPU
  int cores = 0, machine_cores = 0;  // available to this process; total
  int64_t token_budget = 0, max_length = 0, limit_bytes = 0, planned_bytes = 0;
  int staging_depth = 0;
  double plan_tokens_per_second = 0;  // predicted for texts of this run's mean length
  // The same with all available device memory, which shows the cost of the limit.
  int64_t free_token_budget = 0, free_limit_bytes = 0;
  double free_tokens_per_second = 0;
  double load_seconds = 0;
  std::string others;           // "other processes used 1.3 of 2 cores (cc1plus 0.9)"; empty if unknown
  engine::PipelineStats stats;  // training: rows, tokens and batches of its steps
  CardRecord card;
  TracedTraining training;

  bool trains_lanes() const { return verb.starts_with("forecast "); }
  bool trains() const { return verb == "train" || trains_lanes(); }  // if true, `training` is set
};

struct RunTrace {
  TracedRun record;
  std::vector<std::string> lanes;
  std::vector<ZoneEvent> events;  // stages only, ordered by begin time; `thread` is the lane
};

// The software power cap: every healthy GPU reaches it under full load; not a fault.
bool is_power_cap(const std::string& reason);
// Reasons that make the GPU slower than it should be.
bool is_slowdown(const std::string& reason);

// Aggregates readings of one GPU during a run.
class CardReadings {
 public:
  void add(const monitor::GpuSample& card);
  const CardRecord& record() const { return record_; }

 private:
  CardRecord record_;
  double clocks_ = 0, unhindered_clocks_ = 0, power_ = 0;
  int clock_samples_ = 0, unhindered_samples_ = 0, power_samples_ = 0;
};

// Reads the GPU five times per second during a run, on a separate thread.
class CardWatch {
 public:
  explicit CardWatch(const std::string& pci_bus_id);  // the run's GPU
  ~CardWatch();
  CardRecord stop();

 private:
  void watch(const std::string& pci_bus_id);
  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stop_ = false;
  CardReadings readings_;
  std::thread thread_;
};

// Creates the record at the end of a run.
TracedRun make_record(const std::string& verb, engine::TextModel& model, const engine::PipelineStats& stats,
                      double load_seconds);

std::string to_json(const TracedRun& record);
TracedRun record_from_json(const std::string& json);  // throws bad_data

// The timeline of this process with a record.
RunTrace current_trace(TracedRun record);
// Reads a file written by --trace. Throws usage if it cannot be opened, bad_data if it is not a trace of a scoring or
// training run.
RunTrace read_trace(const std::string& path);
RunTrace parse_trace(const std::string& json, const std::string& name);

}  // namespace brim::jobs
