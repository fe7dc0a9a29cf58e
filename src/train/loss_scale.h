// SPDX-License-Identifier: Apache-2.0
// fp16's loss scale: halved when a gradient overflows, doubled after many steps without.
#pragma once
#include "train/checkpoint.h"

namespace brim::train {

inline constexpr double kFirstLossScale = 65536;

// Takes a step's gradient norm into account. False: it overflowed, the update was skipped and the next step has half
// the scale. Throws diverged where a scale of 1 overflows.
bool adjust_loss_scale(TrainProgress& progress, double norm);

}  // namespace brim::train
