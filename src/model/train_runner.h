// SPDX-License-Identifier: Apache-2.0
// Micro-batches of training under a memory plan, as forward_runner.h does for scoring.
#pragma once
#include "model/forward_runner.h"
#include "model/train_state.h"

namespace brim {

struct TrainPassPlan {
  BatchLimits limits;
  Recompute recompute = Recompute::none;
  Precision precision = Precision::fp32;
  Placement placement;
  double flops = 0, bytes = 0;  // of the largest micro-batch, recomputation included
  OpTotals ops;                 // the same by op
  int64_t arena_bytes() const { return placement.peak_bytes; }
};
TrainPassPlan plan_train_pass(const ModelShape& shape, Precision precision, Recompute recompute, DeviceKind target,
                              Isa isa, int threads, BatchLimits limits);

// Runs one micro-batch in `arena` (plan.arena_bytes()).
TrainResult run_train_pass(Stream& stream, void* arena, const TrainPassPlan& plan, const TrainPass& pass,
                           const BatchView& batch, const TrainTargets& targets, int threads);

}  // namespace brim
