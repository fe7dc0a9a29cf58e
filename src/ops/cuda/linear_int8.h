// SPDX-License-Identifier: Apache-2.0
// linear with int8 operands (linear_int8_cuda.cu): products and results of one kernel, without the library.
#pragma once
#include "ops/linear.h"

namespace brim::device {
class CudaStream;
}  // namespace brim::device

namespace brim::ops {

void launch_int8(device::CudaStream& stream, const LinearArgs& args);

}  // namespace brim::ops
