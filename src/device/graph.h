// SPDX-License-Identifier: Apache-2.0
// Captured graphs: the work of a stream between begin and end, replayed in one launch. Addresses are fixed, so
// everything used must be in the arena. Only CUDA streams support capture, and not with BRIM_SYNC=1, which runs op by
// op to name the one that fails.
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
// Until end_capture, ops called from this thread are recorded, not run. On an exception in between, call abort_capture.
void begin_capture(Stream& stream);
std::unique_ptr<Graph> end_capture(Stream& stream);
void abort_capture(Stream& stream) noexcept;

}  // namespace brim::device
