// SPDX-License-Identifier: Apache-2.0
// Thresholds: a reading that passes one is reported once, with its limit, and again only after it has come back well
// within. A reading that is not available neither warns nor calms.
#pragma once
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "monitor/nvml.h"

namespace brim::monitor {

// 0 turns a threshold off.
struct WatchLimits {
  double max_utilization_percent = 90;
  double max_temperature_c = 85;
  double min_free_mib = 500;
};

class Watch {
 public:
  explicit Watch(const WatchLimits& limits) : limits_(limits) {}
  // What is newly passed, in sentences.
  std::vector<std::string> check(const std::vector<GpuSample>& gpus);
  // What is past its limit in the last sample.
  const std::vector<std::string>& active() const { return active_; }
  // What each of those is, whatever its numbers. A fault is more than hard work: a card that is lost, too hot, or has
  // too little memory left.
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
