// SPDX-License-Identifier: Apache-2.0
// linear for few rows (linear_thin_cuda.cu): where a product's time is that of its weights' way from memory and of its
// launch, not of its arithmetic.
#pragma once
#include "ops/linear.h"

namespace brim::device {
class CudaStream;
}  // namespace brim::device

namespace brim::ops {

// Whether this product is one: half precision, few rows, and a stream whose algorithms may depend on their number.
bool is_thin(const device::CudaStream& stream, const LinearArgs& args);
void launch_thin(device::CudaStream& stream, const LinearArgs& args);

}  // namespace brim::ops
