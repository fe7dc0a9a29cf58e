// SPDX-License-Identifier: Apache-2.0
#include "model/train_runner.h"

#include "base/error.h"
#include "model/weights.h"

namespace brim::model {

TrainPassPlan plan_train_pass(const ModelShape& shape, ops::Precision precision, Recompute recompute,
                              device::DeviceKind target, device::Isa isa, int threads, BatchLimits limits) {
  TrainPassPlan plan;
  plan.limits = limits;
  plan.recompute = recompute;
  plan.precision = precision;
  memory::LifetimeRecorder recorder;
  device::NullStream stream(&recorder, target, isa);
  Exec exec{stream, recorder, activation_type(precision, target), pass_precision(precision, target), threads};
  const Params params = describe_train_params(shape, precision, target, isa);
  const auto model = make_architecture(shape);
  TrainPass pass{*model, params, recompute, {}, {}};
  pass.training.dropout.on = shape.has_dropout();
  const ops::BatchView batch = describe_batch(limits.tokens, limits.sequences, limits.longest);
  pass.training.sorted = pass.training.sorted_positions = batch.ids;
  TrainTargets targets;
  auto* nowhere = reinterpret_cast<void*>(uintptr_t{1} << 12);
  targets.sequence = shape.number_targets()
                         ? tensor::TensorView(nowhere, tensor::DType::f32, {limits.sequences, shape.sequence_classes})
                         : tensor::TensorView(nowhere, tensor::DType::i32, {limits.sequences});
  targets.token = tensor::TensorView(nowhere, tensor::DType::i32, {limits.tokens});
  forward_backward(exec, pass, batch, targets);
  plan.placement = place(recorder.lifetimes());
  plan.flops = recorder.flops();
  plan.bytes = recorder.bytes();
  plan.ops = recorder.ops();
  return plan;
}

TrainResult run_train_pass(device::Stream& stream, void* arena, const TrainPassPlan& plan, const TrainPass& pass,
                           const ops::BatchView& batch, const TrainTargets& targets, int threads) {
  BRIM_CHECK(batch.T <= plan.limits.tokens && batch.B <= plan.limits.sequences && batch.S <= plan.limits.longest,
             "micro-batch of {} tokens, {} sequences, longest {} exceeds the plan's {}, {}, {}", batch.T, batch.B,
             batch.S, plan.limits.tokens, plan.limits.sequences, plan.limits.longest);
  memory::PlannedAllocator memory(arena, &plan.placement);
  Exec exec{stream, memory, activation_type(plan.precision, stream.kind()),
            pass_precision(plan.precision, stream.kind()), threads};
  return forward_backward(exec, pass, batch, targets);
}

}  // namespace brim::model
