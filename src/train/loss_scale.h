// SPDX-License-Identifier: Apache-2.0
// Dynamic loss scale for fp16: halved when a gradient overflows, doubled after many steps without overflow.
#pragma once
#include "train/checkpoint.h"

namespace brim::train {

inline constexpr double kFirstLossScale = 65536;

// Updates the scale from a step's gradient norm. Returns false on overflow: the update was skipped and the next step
// uses half the scale. Throws diverged on overflow at a scale of 1.
bool adjust_loss_scale(TrainProgress& progress, double norm);

}  // namespace brim::train
