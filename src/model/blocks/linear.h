// SPDX-License-Identifier: Apache-2.0
// Matrix product with bias, forward and backward, shared by the other blocks. Does not choose the precision of a matrix
// (see params.h).
#pragma once
#include "model/pass.h"
#include "ops/fp8_copy.h"

namespace brim::model {

struct LinearParams {
  int64_t w = -1, b = -1;
};

// Input of a product: rows and, in fp8 and for int8 codes, their dequantisation factors.
struct Input {
  tensor::TensorView x;
  tensor::TensorView dequantise = {};
};
// Hidden states in the format that matrix `w` reads.
inline Input input_of(const Hidden& x, const Param& w) {
  return x.narrow ? Input{x.narrow, x.scales ? x.scales : w.input.dequantise} : Input{x.x};
}

// Operand of a training product: the tensor itself or, if the matrix is multiplied in fp8, e4m3 copies.
struct Operand {
  Operand() = default;
  Operand(const tensor::TensorView& values) : x(values) {}  // NOLINT: implicit, the same tensor
  tensor::TensorView x;                                     // unused if there are copies
  tensor::TensorView rows;                                  // for a product with the tensor
  tensor::TensorView columns;                               // for a gradient of weights
};
// Selects the e4m3 copies to make.
struct Wanted {
  bool rows = true, columns = true;
};
// Allocates copies of [T,C], to be written by the op that computes the tensor.
ops::Fp8Copy room_for_copies(const Pass& p, const Fp8Site& site, int64_t T, int64_t C, Wanted wanted = {});
// Makes copies of activation(x); the operand then has no other values.
Operand cast_operand(const Pass& p, const Fp8Site& site, const tensor::TensorView& x, Wanted wanted = {},
                     ops::Activation activation = ops::Activation::none);
// Hidden states as an fp8 operand of matrix `w`; reuses existing copies.
Operand operand_of(const Pass& p, const Hidden& x, int64_t w, Wanted wanted = {});
// Gradient of a product's result. In fp8 it is cast and the bias's gradient accumulated in one pass; at.b is then set
// to -1.
Operand gradient_operand(const Pass& p, LinearParams& at, const tensor::TensorView& d_y);
// fp8 training: gradient of a product's result before its activation, d_y times the slope at `before`. Also accumulates
// the bias's gradient.
Operand cast_slope(const Pass& p, LinearParams at, const tensor::TensorView& d_y, const tensor::TensorView& before,
                   ops::Activation activation);
// fp8 training: x times rows [begin,end) of the matrix (end < 0: all), plus their bias.
void multiply_fp8(const Pass& p, const Operand& x, LinearParams at, const tensor::TensorView& y, int64_t begin = 0,
                  int64_t end = -1, const tensor::TensorView& residual = {});

// On a GPU, rows for an int8 matrix that are not codes yet are quantised first.
struct LinearOptions {
  ops::Activation activation = ops::Activation::none;
  tensor::TensorView residual = {}, quantise = {};
};
void apply_linear(const Pass& p, const Input& x, const ops::LinearWeight& w, const tensor::TensorView& bias,
                  const tensor::TensorView& y, const LinearOptions& options = {});
// Same for rows [begin,end) of a matrix and their bias, with the product of an adapter if the model has one.
void apply_linear(const Pass& p, const Input& x, LinearParams at, int64_t begin, int64_t end,
                  const tensor::TensorView& y, const LinearOptions& options = {});
inline void apply_linear(const Pass& p, const Input& x, LinearParams at, const tensor::TensorView& y,
                         const LinearOptions& options = {}) {
  apply_linear(p, x, at, 0, p.param(at.w).matrix.N, y, options);
}

// residual + product. CPU inference adds the residual while the product is in registers. On the GPU the norm adds it,
// because a residual in cuBLASLt's epilogue slows the product by as much as it saves in the norm, and in training
// dropout comes between them. If the sum is kept for another reader, the norm would have to write it too; GPU inference
// then adds it in the product, with five rows of traffic instead of six.
Hidden add_product(const Pass& p, const Input& x, LinearParams at, const tensor::TensorView& residual,
                   bool keeps_sum = false);
Hidden add_product_fp8(const Pass& p, const Operand& x, LinearParams at, const tensor::TensorView& residual);

// For rows [begin,end) of the matrix (a part of qkv). Empty d_x: not computed. In fp8, missing copies are made; if d_y
// has copies, the bias's gradient has already been accumulated.
void linear_backward(const Pass& p, const Operand& x, LinearParams at, int64_t begin, int64_t end, const Operand& d_y,
                     const tensor::TensorView& d_x, ops::GradWrite d_x_write);
void linear_backward(const Pass& p, const Operand& x, LinearParams at, const Operand& d_y,
                     const tensor::TensorView& d_x, ops::GradWrite d_x_write = ops::GradWrite::overwrite);
// The two halves of linear_backward, for callers that have x only after d_x, or memory for d_x only after x. On a CPU
// the combined call is faster, because d_y is still in the cache.
void linear_backward_input(const Pass& p, LinearParams at, const Operand& d_y, const tensor::TensorView& d_x);
void linear_backward_weights(const Pass& p, const Operand& x, LinearParams at, const Operand& d_y);

}  // namespace brim::model
