// SPDX-License-Identifier: Apache-2.0
// Summary printed at the end of a run: throughput, memory, utilisation and the bottleneck. Does not collect statistics
// (engine/run_stats.h).
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/pipeline.h"

namespace brim::cli {

// One model of a run. `name` is the prefix of its columns; empty for a single model.
struct SummaryModel {
  std::string name, model, device, precision, precision_reason;
  engine::RunStats stats;
};

struct Summary {
  std::vector<SummaryModel> models;
  engine::PipelineStats counted;
  engine::RunStats stats;
  std::map<std::string, int64_t> counters;  // rows, bad rows, blank lines, and counter_name keys: label …, entities
  double load_seconds = 0;
  bool on_card = false;  // peak_bytes is GPU memory, not host memory

  std::string text() const;
  void write_json(const std::string& path) const;
};

// Counter key of one model; includes its name if there are several.
std::string counter_name(const std::string& model, std::string_view what);

Summary summarize(const std::vector<engine::TextModel*>& models, const std::vector<std::string>& names,
                  const engine::PipelineStats& counted, const std::map<std::string, int64_t>& counters,
                  double load_seconds);
Summary summarize(engine::TextModel& model, const engine::PipelineStats& counted,
                  const std::map<std::string, int64_t>& counters, double load_seconds);

// "device busy 97.1 % · MFU 45.2 % · memory planned 1.2 GiB, held 1.2 GiB, of 8 GiB · budget 65,536 tokens".
std::string device_line(const engine::RunStats& stats, bool on_card);

}  // namespace brim::cli
