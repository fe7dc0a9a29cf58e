// SPDX-License-Identifier: Apache-2.0
// Summary printed at the end of a run: throughput, memory, utilisation and the bottleneck. Does not collect statistics
// (engine/run_stats.h).
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "brim/brim.h"
#include "engine/score_rows.h"

namespace brim::cli {

// One model of a run. `name` is the prefix of its columns; empty for a single model.
struct SummaryModel {
  std::string name;
  monitor::RunRecord run;
};

struct Summary {
  std::vector<SummaryModel> models;
  monitor::RunRecord run;                   // all models together
  std::map<std::string, int64_t> counters;  // rows, bad rows, blank lines, and those of jobs::ScoreFile

  std::string text() const;
  void write_json(const std::string& path) const;
};

Summary summarize(const std::vector<Scorer*>& models, const std::vector<std::string>& names,
                  const engine::RowReport& counted, const std::map<std::string, int64_t>& counters,
                  double load_seconds);

}  // namespace brim::cli
