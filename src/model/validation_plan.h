// SPDX-License-Identifier: Apache-2.0
// Evaluation between training steps: scoring passes that take turns with training in its arena.
#pragma once
#include "model/forward_runner.h"

namespace brim::model {

struct ValidationPlan {
  BatchLimits limits;
  ForwardPlan sequence, token;  // of the heads that there are
  int64_t staging_bytes = 0;    // a batch's integers, behind the pass; 0 on the CPU

  int64_t pass_bytes() const { return std::max(sequence.arena_bytes(), token.arena_bytes()); }
  int64_t arena_bytes() const { return pass_bytes() + staging_bytes; }
};

// `training`: the limits of its micro-batches.
ValidationPlan plan_validation(const ModelShape& shape, ops::Precision precision, device::DeviceKind target,
                               device::Isa isa, int threads, BatchLimits training);

}  // namespace brim::model
