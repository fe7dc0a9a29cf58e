// SPDX-License-Identifier: Apache-2.0
// Publishes a pipeline's progress for `brim monitor`. Does not draw progress bars.
#pragma once
#include <vector>

#include "engine/scorer_access.h"
#include "monitor/live.h"

namespace brim::cli {

class LiveRun {
 public:
  LiveRun(const char* command, const std::vector<Scorer*>& models);
  // `done`: fraction of the input read, if its size is known. Cheap: publishes five times per second.
  void update(const engine::PipelineStats& now, std::optional<double> done);

 private:
  std::vector<engine::Engine*> engines_;
  bool several_ = false;
  monitor::LivePublisher publisher_;
  monitor::RunRecord record_;
  int64_t started_ns_, last_ns_ = 0;
};

}  // namespace brim::cli
