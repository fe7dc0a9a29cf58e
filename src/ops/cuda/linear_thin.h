// SPDX-License-Identifier: Apache-2.0
// linear for few rows (linear_thin_cuda.cu): the time is dominated by loading the weights and by the launch, not by
// arithmetic.
#pragma once
#include "ops/linear.h"

namespace brim::device {
class CudaStream;
}  // namespace brim::device

namespace brim::ops {

// Whether this kernel applies: half precision, few rows, and a stream whose algorithms may depend on the row count.
bool is_thin(const device::CudaStream& stream, const LinearArgs& args);
void launch_thin(device::CudaStream& stream, const LinearArgs& args);

}  // namespace brim::ops
