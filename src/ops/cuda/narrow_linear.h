// SPDX-License-Identifier: Apache-2.0
// Chooses between the library and our own kernels for products with few columns.
#pragma once
#include "device/cuda/cuda_stream.h"

namespace brim::ops {

// Whether a product has the shape of a classifier head: at most 16 columns, and few rows. Adapters have as few columns,
// but a row per token. If algorithms must not depend on the rows, all products with few columns use our kernels.
inline bool is_narrow_head(const device::CudaStream& stream, int64_t rows, int64_t columns) {
  constexpr int64_t kManyRows = 512;
  return columns <= 16 && (rows < kManyRows || stream.algorithm_tokens() != 0);
}

}  // namespace brim::ops
