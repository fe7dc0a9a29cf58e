// SPDX-License-Identifier: Apache-2.0
// Scoring passes of training: evaluation between steps, which takes turns with training in its arena, and teachers
// before each micro-batch, whose logits training reads.
#pragma once
#include <span>
#include <vector>

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

// Teachers compute one after another in one arena; behind it lie the logits of all of them.
struct TeachersPlan {
  std::vector<ForwardPlan> passes;
  int64_t pass_bytes = 0;    // of the largest
  int64_t logits_bytes = 0;  // [teachers * sequences, classes] f32

  int64_t arena_bytes() const { return pass_bytes + logits_bytes; }
};
TeachersPlan plan_teachers(std::span<const ModelShape> shapes, ops::Precision precision, device::DeviceKind target,
                           device::Isa isa, int threads, BatchLimits training);

}  // namespace brim::model
