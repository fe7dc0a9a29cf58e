// SPDX-License-Identifier: Apache-2.0
// A snapshot of GPUs, host and running Brim processes, a history of earlier ones, and JSON output.
#pragma once
#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "monitor/host.h"
#include "monitor/live.h"
#include "monitor/nvml.h"

namespace brim::monitor {

struct Snapshot {
  int64_t unix_ns = 0;
  NvmlState nvml = NvmlState::no_library;
  std::string nvml_why;
  std::vector<GpuSample> gpus;
  HostSample host;
  std::vector<RunRecord> runs;
  std::vector<std::string> warnings;  // thresholds currently exceeded, see Watch
};

// One line of JSON; unavailable readings are null.
std::string to_json(const Snapshot& snapshot);

// The run that computes on this GPU: by process if the driver reports it, else by bus id, else by CUDA index. Null if
// none.
const RunRecord* run_on(const Snapshot& snapshot, const GpuSample& gpu);

class Sampler {
 public:
  explicit Sampler(std::filesystem::path disk = ".") : host_(std::move(disk)) {}
  Snapshot sample(const GpuSampleOptions& options = {});
  const Nvml& nvml() const { return nvml_; }

 private:
  Nvml nvml_;
  HostSampler host_;
};

// Latest readings of each series, as fractions, for sparklines. A missing reading is a gap.
class History {
 public:
  explicit History(size_t length = 512) : length_(length) {}
  void add(const Snapshot& snapshot);
  using Readings = std::deque<std::optional<double>>;
  const Readings& series(const std::string& name) const;  // "cpu", "gpu0.utilization", "gpu0.memory", "gpu0.mfu"

 private:
  void push(const std::string& name, std::optional<double> share);
  size_t length_;
  std::map<std::string, Readings> series_;
};

}  // namespace brim::monitor
