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
#include "brim/brim.h"
#include "engine/run_stats.h"
#include "monitor/nvml.h"
#include "monitor/run_record.h"

namespace brim::jobs {

using monitor::CardRecord;
using monitor::RunRecord;

struct RunTrace {
  RunRecord record;
  std::vector<std::string> lanes;
  std::vector<ZoneEvent> events;  // stages only, ordered by begin time; `thread` is the lane
};

// Whether memory held by other processes, rather than the run's own limit, kept its batches small.
bool others_hold_memory(const RunRecord& record);

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
RunRecord make_record(const std::string& verb, Scorer& model, const engine::PipelineStats& stats, double load_seconds);

// Reads a file written by --trace. Throws usage if it cannot be opened, bad_data if it is not a trace of a scoring or
// training run.
RunTrace read_trace(const std::string& path);
RunTrace parse_trace(const std::string& json, const std::string& name);

}  // namespace brim::jobs
