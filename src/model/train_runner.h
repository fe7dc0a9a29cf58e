// SPDX-License-Identifier: Apache-2.0
// Runs training micro-batches under a memory plan, as forward_runner.h does for inference. Does not update parameters.
#pragma once
#include "model/forward_runner.h"
#include "model/train_state.h"

namespace brim::model {

struct TrainPassPlan {
  BatchLimits limits;
  Recompute recompute = Recompute::none;
  ops::Precision precision = ops::Precision::fp32;
  memory::Placement placement;
  double flops = 0, bytes = 0;  // for the largest micro-batch, including recomputation
  OpTotals ops;                 // same by op
  int64_t arena_bytes() const { return placement.peak_bytes; }
};
TrainPassPlan plan_train_pass(const ModelShape& shape, ops::Precision precision, Recompute recompute,
                              device::DeviceKind target, device::Isa isa, int threads, BatchLimits limits);

// Runs one micro-batch in `arena` (plan.arena_bytes()).
TrainResult run_train_pass(device::Stream& stream, void* arena, const TrainPassPlan& plan, const TrainPass& pass,
                           const ops::BatchView& batch, const TrainTargets& targets, int threads);

}  // namespace brim::model
