// SPDX-License-Identifier: Apache-2.0
// For tests and benchmarks: which matrix kernel the last linear on the CPU ran, and which one is meant to.
#pragma once
#include "ops/linear.h"

namespace brim::ops {

const char* linear_last_kernel();  // "avx512_fp32"; empty before the first
const char* linear_kernel_name(device::Isa isa, Precision precision);

}  // namespace brim::ops
