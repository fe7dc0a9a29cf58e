// SPDX-License-Identifier: Apache-2.0
// What a run says at its end: how fast, how full, how busy, and the one thing that held it back.
#pragma once
#include <map>
#include <string>

#include "engine/pipeline.h"

namespace brim {

struct Summary {
  std::string model, device, precision, precision_reason, held_back_by;
  PipelineStats stats;
  std::map<std::string, int64_t> counters;  // rows, bad rows, label …
  double load_seconds = 0;
  double mfu = -1;                // share of the device's measured matrix rate; negative: unknown
  double device_busy = 0;         // share of the run
  int64_t planned_bytes = 0, peak_bytes = 0, limit_bytes = 0, token_budget = 0;

  std::string text() const;
  void write_json(const std::string& path) const;
};

Summary summarize(Engine* engine, const PipelineStats& stats, const std::map<std::string, int64_t>& counters, double load_seconds);

}  // namespace brim
