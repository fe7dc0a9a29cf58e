// SPDX-License-Identifier: Apache-2.0
#include "model/validation_plan.h"

#include <algorithm>

#include "memory/placement.h"
#include "model/staging.h"

namespace brim::model {

ValidationPlan plan_validation(const ModelShape& shape, ops::Precision precision, device::DeviceKind target,
                               device::Isa isa, int threads, BatchLimits training) {
  constexpr int64_t kTokens = 16384;  // a forward pass is not faster above a few thousand tokens
  ValidationPlan plan;
  plan.limits = training;
  plan.limits.tokens = std::max(training.longest, std::min(training.tokens, kTokens));
  plan.limits.sequences = std::min(training.sequences, most_sequences(plan.limits.tokens));
  const auto pass = [&](Output output) {
    return plan_forward(shape, pass_precision(precision, target), target, isa, threads, plan.limits, output);
  };
  if (shape.sequence_classes > 0) plan.sequence = pass(Output::sequence_logits);
  if (shape.token_classes > 0) plan.token = pass(Output::token_logits);
  if (target != device::DeviceKind::cpu) plan.staging_bytes = staged_batch_bytes(plan.limits);
  return plan;
}

}  // namespace brim::model
