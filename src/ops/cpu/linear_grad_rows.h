// SPDX-License-Identifier: Apache-2.0
// linear_grad on the CPU for ops that do more with d_x: `done(begin, end)` is called for rows of it as soon as they are
// there, in order, while a cache holds them.
#pragma once
#include <functional>

#include "ops/linear.h"

namespace brim::ops {

using RowsDone = std::function<void(int64_t begin, int64_t end)>;
void linear_grad_rows(device::Stream& stream, const LinearGradArgs& args, const RowsDone& done);

}  // namespace brim::ops
