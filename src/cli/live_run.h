// SPDX-License-Identifier: Apache-2.0
// Publishes a pipeline's progress for `brim monitor`. Does not draw progress bars.
#pragma once
#include "engine/pipeline.h"
#include "monitor/live.h"

namespace brim::cli {

class LiveRun {
 public:
  LiveRun(const char* command, const std::vector<engine::TextModel*>& models);
  // `done`: fraction of the input read, negative if its size is unknown. Cheap: publishes five times per second.
  void update(const engine::PipelineStats& now, double done);

 private:
  engine::Engine* engine_ = nullptr;  // the first model's, if any
  bool several_ = false;
  monitor::LivePublisher publisher_;
  monitor::LiveFigures figures_;
  int64_t started_ns_, last_ns_ = 0;
};

}  // namespace brim::cli
