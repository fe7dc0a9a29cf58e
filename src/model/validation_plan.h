// SPDX-License-Identifier: Apache-2.0
// Memory plan for inference passes during training: evaluation between steps, which shares training's arena. Does not
// run them.
#pragma once
#include "model/forward_runner.h"

namespace brim::model {

struct ValidationPlan {
  BatchLimits limits;
  ForwardPlan sequence, token;  // for the existing heads
  int64_t staging_bytes = 0;    // integers of a batch, after the pass; 0 on the CPU

  int64_t pass_bytes() const { return std::max(sequence.arena_bytes(), token.arena_bytes()); }
  int64_t arena_bytes() const { return pass_bytes() + staging_bytes; }
};

// `training`: limits of the training micro-batches.
ValidationPlan plan_validation(const ModelShape& shape, ops::Precision precision, device::DeviceKind target,
                               device::Isa isa, int threads, BatchLimits training);

}  // namespace brim::model
