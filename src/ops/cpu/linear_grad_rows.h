// SPDX-License-Identifier: Apache-2.0
// linear_grad on the CPU for ops that do more with d_x: `done(begin, end, rows)` is called for rows of it as soon as
// they are there, in order, while a cache holds them. `rows` are f32: d_x's own, or `block`'s where one is given, and
// then `done` brings them to d_x. x and d_y may be bf16 where the kernel packs them turned.
#pragma once
#include <functional>

#include "ops/linear.h"

namespace brim::ops {

using RowsDone = std::function<void(int64_t begin, int64_t end, const TensorView& rows)>;
void linear_grad_rows(device::Stream& stream, const LinearGradArgs& args, const RowsDone& done,
                      const TensorView& block = {});

}  // namespace brim::ops
