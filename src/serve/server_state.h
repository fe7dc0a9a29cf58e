// SPDX-License-Identifier: Apache-2.0
// State of a server as a whole: its work in progress, and how far its shutdown is.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <ctime>

#include "base/clock.h"
#include "serve/models.h"
#include "serve/progress_watch.h"

namespace brim::serve {

struct ServerState {
  std::atomic<bool> draining{false};      // open connections are still answered until `refusing`
  std::atomic<bool> refusing{false};      // new texts are rejected
  std::atomic<bool> cutting{false};       // connections are cut
  std::atomic<bool> drain_wanted{false};  // requested by a client
  std::atomic<size_t> texts{0};           // without a result yet
  std::atomic<size_t> requests{0};        // scoring requests in progress
  mutable ProgressWatch progress;         // results arrive
  const int64_t started_ns = now_ns();
  const int64_t started_unix = std::time(nullptr);

  bool idle() const { return texts == 0 && requests == 0; }

  // No progress for too long, or a batch runs far too long. Rows, queues and jobs count as batches, not as texts.
  bool stuck(const ModelRegistry& models) const {
    double predicted = 0;
    int64_t batches = 0;
    bool batch_is_late = false;
    for (const Served& model : models.loaded()) {
      const ScorerLoad load = model->scorer->load();
      predicted = std::max(predicted, load.wait_seconds);
      batches += model->scorer->work().batches;
      batch_is_late |= ProgressWatch::too_long(load.batch_seconds, load.batch_predicted_seconds);
    }
    return progress.stuck(now_ns(), texts > 0, batches, predicted) || batch_is_late;
  }
};

}  // namespace brim::serve
