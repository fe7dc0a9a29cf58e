// SPDX-License-Identifier: Apache-2.0
#include "train/loss_scale.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace brim::train {
namespace {

constexpr double kLargestLossScale = 1 << 24;
constexpr int64_t kLossScaleGrowSteps = 2000;

}  // namespace

bool adjust_loss_scale(TrainProgress& p, double norm) {
  if (std::isfinite(norm)) {
    if (++p.good_steps % kLossScaleGrowSteps == 0) p.loss_scale = std::min(kLargestLossScale, p.loss_scale * 2);
    return true;
  }
  if (p.loss_scale <= 1)
    fail(ErrorCode::diverged,
         Remedy{"set `precision=fp32` (or bf16 if the device supports it) or a smaller `learning_rate`"},
         "step {}: gradients overflow fp16 even with a loss scale of 1", p.step);
  ++p.skipped_steps;
  p.loss_scale = std::max(1.0, p.loss_scale / 2);
  p.good_steps = 0;
  return false;
}

}  // namespace brim::train
