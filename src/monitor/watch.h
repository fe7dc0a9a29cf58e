// SPDX-License-Identifier: Apache-2.0
// Threshold warnings: a reading beyond its limit is reported once, and again only after it has fallen well below. An
// unavailable reading neither raises nor clears a warning.
#pragma once
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "monitor/nvml.h"

namespace brim::monitor {

// 0 disables a threshold.
struct WatchLimits {
  double max_utilization_percent = 90;
  double max_temperature_c = 85;
  double min_free_mib = 500;
  double max_memory_percent = 95;
};

class Watch {
 public:
  explicit Watch(const WatchLimits& limits) : limits_(limits) {}
  // Messages for newly exceeded thresholds.
  std::vector<std::string> check(const std::vector<GpuSample>& gpus);
  // Messages for all thresholds exceeded in the last sample.
  const std::vector<std::string>& active() const { return active_; }
  // Kind of each active warning, independent of its numbers. High utilisation and a high share of used
  // memory are no faults; a lost or overheated GPU and too little free memory are.
  struct Kind {
    std::string name;
    bool fault;
  };
  const std::vector<Kind>& active_kinds() const { return kinds_; }
  bool faulty() const { return std::ranges::any_of(kinds_, &Kind::fault); }

 private:
  WatchLimits limits_;
  std::set<std::string> passed_;  // "0 temperature"
  std::vector<std::string> active_;
  std::vector<Kind> kinds_;
};

}  // namespace brim::monitor
