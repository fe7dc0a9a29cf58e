// SPDX-License-Identifier: Apache-2.0
// Memory plans for inference passes during training: evaluation between steps, which shares training's arena, and
// teachers before each micro-batch, whose logits training reads. Does not run them.
#pragma once
#include <span>
#include <vector>

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

// Teachers run one after another in the same arena; the logits of all of them follow it.
struct TeachersPlan {
  std::vector<ForwardPlan> passes;
  int64_t pass_bytes = 0;    // for the largest teacher
  int64_t logits_bytes = 0;  // [teachers * sequences, classes] f32

  int64_t arena_bytes() const { return pass_bytes + logits_bytes; }
};
TeachersPlan plan_teachers(std::span<const ModelShape> shapes, ops::Precision precision, device::DeviceKind target,
                           device::Isa isa, int threads, BatchLimits training);

}  // namespace brim::model
