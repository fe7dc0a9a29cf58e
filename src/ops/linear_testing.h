// SPDX-License-Identifier: Apache-2.0
// For tests and benchmarks: the matrix kernel used by the last linear on the CPU, and the expected one.
#pragma once
#include "ops/linear.h"

namespace brim::ops {

const char* linear_last_kernel();  // "avx512_fp32"; empty before the first call
const char* linear_kernel_name(device::Isa isa, Precision precision);

}  // namespace brim::ops
