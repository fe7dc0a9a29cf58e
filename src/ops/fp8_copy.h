// SPDX-License-Identifier: Apache-2.0
// e4m3 copies of an op's result for fp8 training matmuls (ops/fp8_cast.h): by rows for the product that reads it, by
// columns for the weight gradient of that product.
#pragma once
#include "device/stream.h"
#include "tensor/tensor_view.h"

namespace brim::ops {

// Tokens rounded up to a valid depth of an fp8 product.
constexpr int64_t fp8_columns(int64_t T) { return (T + 15) / 16 * 16; }

struct Fp8Copy {
  tensor::TensorView rows;     // [T,C] f8e4m3; may be empty
  tensor::TensorView columns;  // [C,fp8_columns(T)] f8e4m3, zeros beyond T; may be empty
  tensor::TensorView scale;    // [1] f32: multiplies the values; they saturate at 448
  tensor::TensorView amax;     // [1] f32: updated to the maximum of itself and the largest magnitude; may be empty

  explicit operator bool() const { return static_cast<bool>(scale); }
};

// For a result [T,C]; an empty copy is allowed.
void check_fp8_copy(const char* op, const Fp8Copy& copy, int64_t T, int64_t C);
// Writes the copies in a separate pass over `x`, in the type required by fp8_cast, for kernels that cannot write them.
void fp8_copy(device::Stream& stream, const tensor::TensorView& x, const Fp8Copy& copy);

}  // namespace brim::ops
