// SPDX-License-Identifier: Apache-2.0
// Conversion to e4m3 for products in training, where cuBLASLt wants both operands along the sum: a product with the
// tensor needs its rows, a gradient of weights its columns. Both are written in one pass, which may work out an
// activation, or the slope of one and the column sums of what that gives (a bias's gradient), on the way. The largest
// magnitude is merged into `amax`, for the scale of later steps (ops/amax.h).
#pragma once
#include "ops/fp8_copy.h"
#include "ops/op.h"

namespace brim::ops {

using tensor::TensorView;

struct Fp8CastArgs {
  TensorView x;        // [T,C] f32 on the CPU, bf16 on CUDA
  TensorView gate;     // [T,C] input of the activation, whose slope there multiplies x; empty: x itself is activated
  TensorView rows;     // [T,C] f8e4m3; may be empty
  TensorView columns;  // [C,fp8_columns(T)] f8e4m3, zeros beyond T; may be empty
  TensorView scale;    // [1] f32: what values are multiplied by; beyond 448 they saturate
  TensorView inverse;  // [1] f32: becomes 1 / scale, for who multiplies rows or columns; may be empty
  TensorView amax;     // [1] f32: becomes the larger of what is there and the largest magnitude; may be empty
  TensorView d_bias;   // [C] f32, accumulated: column sums before rounding; may be empty
  TensorView scratch;  // u8[fp8_cast_scratch_bytes] where there is a d_bias
  Activation activation = Activation::none;

  template <class F>
  void views(F&& f) const {
    for (const TensorView& v : {x, gate, rows, columns, scale, inverse, amax, d_bias, scratch}) f(v);
  }
};
void fp8_cast(device::Stream& stream, const Fp8CastArgs& args);
int64_t fp8_cast_scratch_bytes(const device::Stream& stream, int64_t T, int64_t C);

// A matrix of a model and its copies: pointers and sizes, read where the op runs.
struct Fp8MatrixPlace {
  const void* x = nullptr;                      // [N,K] f32 on the CPU, bf16 on CUDA
  uint8_t *rows = nullptr, *columns = nullptr;  // [N,K], [K,N] f8e4m3
  int32_t N = 0, K = 0;                         // multiples of 16
  int32_t first_tile = 0;                       // tiles of the matrices before it
};
constexpr int64_t kFp8TileHeight = 128, kFp8TileWidth = 64;
constexpr int64_t fp8_tiles(int64_t N, int64_t K) {
  return ((N + kFp8TileHeight - 1) / kFp8TileHeight) * ((K + kFp8TileWidth - 1) / kFp8TileWidth);
}

// All of a model's matrices after an update, each in the scale of its own largest value, in three launches rather than
// two for each of them.
struct Fp8CastMatricesArgs {
  TensorView places;                // u8[n * sizeof(Fp8MatrixPlace)]
  TensorView amax, scale;           // [n] f32, written
  TensorView inverse;               // [n,1] f32, written
  int64_t tiles = 0, elements = 0;  // of all matrices
  template <class F>
  void views(F&& f) const {
    for (const TensorView& v : {places, amax, scale, inverse}) f(v);
  }
};
void fp8_cast_matrices(device::Stream& stream, const Fp8CastMatricesArgs& args);

}  // namespace brim::ops
