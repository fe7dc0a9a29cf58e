// SPDX-License-Identifier: Apache-2.0
// Captured graphs: what a stream was asked to do between begin and end, launched again in one call. Addresses are
// frozen in it, so everything it touches must lie in the arena. Only CUDA streams can capture, and not under
// BRIM_SYNC=1, which runs op by op to name the one that fails.
#pragma once
#include <memory>

#include "device/stream.h"

namespace brim::device {

class Graph {
 public:
  virtual ~Graph() = default;
  virtual void launch(Stream& stream) = 0;
};

bool can_capture(const Stream& stream);
// Ops called from this thread until end_capture are recorded, not run. On an exception in between, call abort_capture.
void begin_capture(Stream& stream);
std::unique_ptr<Graph> end_capture(Stream& stream);
void abort_capture(Stream& stream) noexcept;

}  // namespace brim::device
