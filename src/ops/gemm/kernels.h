// SPDX-License-Identifier: Apache-2.0
// Selects the kernel for an instruction set and a precision, and computes the memory of its operands.
#pragma once
#include "ops/gemm/gemm.h"
#include "ops/linear.h"

namespace brim::ops::gemm {

// Throws usage for precisions without CPU arithmetic (tf32, fp16, fp8).
const Kernel& kernel_for(device::Isa isa, Precision precision);

int64_t panel_bytes(const Kernel& kernel, int64_t N, int64_t K);  // packed weights without column sums
int64_t packed_bytes(const Kernel& kernel, int64_t N, int64_t K);
int64_t row_bytes(const Kernel& kernel, int64_t K);  // size of one packed row; 0 if rows are read in place

}  // namespace brim::ops::gemm
