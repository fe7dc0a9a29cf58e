// SPDX-License-Identifier: Apache-2.0
// Copies in e4m3 that an op writes of its result, for the products of training in fp8 (ops/fp8_cast.h): by rows for the
// product that reads it, by columns for the gradient of that product's weights.
#pragma once
#include "device/stream.h"
#include "tensor/tensor_view.h"

namespace brim::ops {

// Tokens rounded up to what a sum of an fp8 product may have.
constexpr int64_t fp8_columns(int64_t T) { return (T + 15) / 16 * 16; }

struct Fp8Copy {
  tensor::TensorView rows;     // [T,C] f8e4m3; may be empty
  tensor::TensorView columns;  // [C,fp8_columns(T)] f8e4m3, zeros beyond T; may be empty
  tensor::TensorView scale;    // [1] f32: what values are multiplied by; beyond 448 they saturate
  tensor::TensorView amax;     // [1] f32: becomes the larger of what is there and the largest magnitude; may be empty

  explicit operator bool() const { return static_cast<bool>(scale); }
};

// Of a result [T,C]; an empty copy is none.
void check_fp8_copy(const char* op, const Fp8Copy& copy, int64_t T, int64_t C);
// The copies by a pass of their own over `x`, which must be as fp8_cast wants it: where the op's kernel cannot.
void fp8_copy(device::Stream& stream, const tensor::TensorView& x, const Fp8Copy& copy);

}  // namespace brim::ops
