// SPDX-License-Identifier: Apache-2.0
// A pipeline's progress, published for `brim monitor`.
#pragma once
#include "engine/pipeline.h"
#include "monitor/live.h"

namespace brim::cli {

class LiveRun {
 public:
  LiveRun(const char* command, const std::vector<engine::TextModel*>& models);
  // `done`: share of the input read, negative where its size is unknown. Cheap: publishes five times a second.
  void update(const engine::PipelineStats& now, double done);

 private:
  engine::Engine* engine_ = nullptr;  // the first model's that has one
  bool several_ = false;
  monitor::LivePublisher publisher_;
  monitor::LiveFigures figures_;
  int64_t started_ns_, last_ns_ = 0;
};

}  // namespace brim::cli
