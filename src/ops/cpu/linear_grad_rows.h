// SPDX-License-Identifier: Apache-2.0
// linear_grad on the CPU for ops that process d_x further: `done(begin, end, rows)` is called in order for rows of it
// as soon as they are computed and still in cache. `rows` are f32: those of d_x, or of `block` if given, in which case
// `done` writes d_x. x and d_y may be bf16 if the kernel packs them transposed.
#pragma once
#include <functional>

#include "ops/linear.h"

namespace brim::ops {

using RowsDone = std::function<void(int64_t begin, int64_t end, const TensorView& rows)>;
void linear_grad_rows(device::Stream& stream, const LinearGradArgs& args, const RowsDone& done,
                      const TensorView& block = {});

}  // namespace brim::ops
