// SPDX-License-Identifier: Apache-2.0
// Conversion to e4m3 for training matmuls. cuBLASLt requires both operands contiguous along the summed dimension: a
// product with the tensor needs its rows, a weight gradient its columns. Both are written in one pass, optionally
// applying an activation, or the slope of one together with column sums of the result (bias gradient). The largest
// magnitude is merged into `amax` for the scale of later steps (ops/amax.h).
#pragma once
#include "ops/fp8_copy.h"
#include "ops/op.h"

namespace brim::ops {

using tensor::TensorView;

struct Fp8CastArgs {
  TensorView x;        // [T,C] f32 on the CPU, bf16 on CUDA
  TensorView gate;     // [T,C] input of an activation whose slope multiplies x; if empty, x itself is activated
  TensorView rows;     // [T,C] f8e4m3; may be empty
  TensorView columns;  // [C,fp8_columns(T)] f8e4m3, zeros beyond T; may be empty
  TensorView scale;    // [1] f32: multiplies the values; they saturate at 448
  TensorView inverse;  // [1] f32: set to 1 / scale, for products with rows or columns; may be empty
  TensorView amax;     // [1] f32: updated to the maximum of itself and the largest magnitude; may be empty
  TensorView d_bias;   // [C] f32, accumulated: column sums before rounding; may be empty
  TensorView scratch;  // u8[fp8_cast_scratch_bytes] if d_bias is given
  Activation activation = Activation::none;

  template <class F>
  void views(F&& f) const {
    for (const TensorView& v : {x, gate, rows, columns, scale, inverse, amax, d_bias, scratch}) f(v);
  }
};
void fp8_cast(device::Stream& stream, const Fp8CastArgs& args);
int64_t fp8_cast_scratch_bytes(const device::Stream& stream, int64_t T, int64_t C);

// A matrix of a model and its copies: pointers and sizes on the device of the op.
struct Fp8MatrixPlace {
  const void* x = nullptr;                      // [N,K] f32 on the CPU, bf16 on CUDA
  uint8_t *rows = nullptr, *columns = nullptr;  // [N,K], [K,N] f8e4m3
  int32_t N = 0, K = 0;                         // multiples of 16
  int32_t first_tile = 0;                       // total tiles of the preceding matrices
};
constexpr int64_t kFp8TileHeight = 128, kFp8TileWidth = 64;
constexpr int64_t fp8_tiles(int64_t N, int64_t K) {
  return ((N + kFp8TileHeight - 1) / kFp8TileHeight) * ((K + kFp8TileWidth - 1) / kFp8TileWidth);
}

// Converts all matrices of a model after an update, each scaled by its own maximum, in three launches instead of two
// per matrix.
struct Fp8CastMatricesArgs {
  TensorView places;                // u8[n * sizeof(Fp8MatrixPlace)]
  TensorView amax, scale;           // [n] f32, written
  TensorView inverse;               // [n,1] f32, written
  int64_t tiles = 0, elements = 0;  // totals over all matrices
  template <class F>
  void views(F&& f) const {
    for (const TensorView& v : {places, amax, scale, inverse}) f(v);
  }
};
void fp8_cast_matrices(device::Stream& stream, const Fp8CastMatricesArgs& args);

}  // namespace brim::ops
