// SPDX-License-Identifier: Apache-2.0
// A matrix product with its bias, forward and backward, as the other blocks use it.
#pragma once
#include "model/pass.h"
#include "ops/fp8_copy.h"

namespace brim::model {

struct LinearPlaces {
  int64_t w = -1, b = -1;
};

// What a product reads: rows, and in fp8 the factor that makes them real numbers again.
struct Input {
  tensor::TensorView x;
  tensor::TensorView dequantise = {};
};
// Hidden states as matrix `w` reads them.
inline Input input_of(const Hidden& x, const Param& w) {
  return x.narrow ? Input{x.narrow, w.input.dequantise} : Input{x.x};
}

// A tensor as training's products read it: as it is or, where the matrix is multiplied in fp8, as copies in e4m3.
struct Operand {
  Operand() = default;
  Operand(const tensor::TensorView& values) : x(values) {}  // NOLINT: implicit, it is the same tensor
  tensor::TensorView x;                                     // not read where there are copies of it
  tensor::TensorView rows;                                  // for a product with the tensor
  tensor::TensorView columns;                               // for a gradient of weights
};
// Which copies in e4m3 are wanted.
struct Wanted {
  bool rows = true, columns = true;
};
// Room for copies of [T,C], to be written by the op that makes the tensor.
ops::Fp8Copy room_for_copies(const Pass& p, const Fp8Site& site, int64_t T, int64_t C, Wanted wanted = {});
// Copies of activation(x); the operand has no other values then.
Operand cast_operand(const Pass& p, const Fp8Site& site, const tensor::TensorView& x, Wanted wanted = {},
                     ops::Activation activation = ops::Activation::none);
// Hidden states as matrix `w` multiplies them in fp8; copies that its maker left are taken.
Operand operand_of(const Pass& p, const Hidden& x, int64_t w, Wanted wanted = {});
// The gradient of a product's result: in fp8 cast, the bias's summed on the way (and not again: at.b becomes -1).
Operand gradient_operand(const Pass& p, LinearPlaces& at, const tensor::TensorView& d_y);
// Training in fp8, the gradient of a product's result before its activation: d_y times the slope at `before`. The
// bias's is summed on the way.
Operand cast_slope(const Pass& p, LinearPlaces at, const tensor::TensorView& d_y, const tensor::TensorView& before,
                   ops::Activation activation);
// Training in fp8: x times rows [begin,end) of the matrix (end < 0: all), and their bias.
void multiply_fp8(const Pass& p, const Operand& x, LinearPlaces at, const tensor::TensorView& y, int64_t begin = 0,
                  int64_t end = -1, const tensor::TensorView& residual = {});

struct LinearOptions {
  ops::Activation activation = ops::Activation::none;
  tensor::TensorView residual = {}, quantise = {};
};
void apply_linear(const Pass& p, const Input& x, const ops::LinearWeight& w, const tensor::TensorView& bias,
                  const tensor::TensorView& y, const LinearOptions& options = {});
inline void apply_linear(const Pass& p, const Input& x, LinearPlaces at, const tensor::TensorView& y,
                         ops::Activation activation = ops::Activation::none) {
  apply_linear(p, x, p.param(at.w).matrix, p.param(at.b).plain, y, {activation});
}

// residual + product. A CPU that scores adds the residual while the product is in registers; on the GPU the norm reads
// it, because a residual in cuBLASLt's epilogue costs the product what it saves the norm, and in training dropout comes
// between them. Where the sum is kept for another reader the norm would write it too: there a GPU that scores adds it
// in the product, five rows of traffic instead of six.
Hidden add_product(const Pass& p, const Input& x, LinearPlaces at, const tensor::TensorView& residual,
                   bool keeps_sum = false);
Hidden add_product_fp8(const Pass& p, const Operand& x, LinearPlaces at, const tensor::TensorView& residual);

// Rows [begin,end) of the matrix (a part of qkv). d_x empty: not wanted. In fp8, copies that are not there are made;
// where d_y's are, the bias has been summed with them.
void linear_backward(const Pass& p, const Operand& x, LinearPlaces at, int64_t begin, int64_t end, const Operand& d_y,
                     const tensor::TensorView& d_x, ops::GradWrite d_x_write);
void linear_backward(const Pass& p, const Operand& x, LinearPlaces at, const Operand& d_y,
                     const tensor::TensorView& d_x, ops::GradWrite d_x_write = ops::GradWrite::overwrite);
// Its two halves, where x is there only after d_x or d_x has room only after x. A CPU likes them together: what the
// first reads is at hand for the second.
void linear_backward_input(const Pass& p, LinearPlaces at, const Operand& d_y, const tensor::TensorView& d_x);
void linear_backward_weights(const Pass& p, const Operand& x, LinearPlaces at, const Operand& d_y);

}  // namespace brim::model
