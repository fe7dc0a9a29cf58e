// SPDX-License-Identifier: Apache-2.0
// A matrix product with its bias, forward and backward, as the other blocks use it.
#pragma once
#include "model/pass.h"

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

// Rows [begin,end) of the matrix (a part of qkv). d_x empty: not wanted.
void linear_backward(const Pass& p, const tensor::TensorView& x, LinearPlaces at, int64_t begin, int64_t end,
                     const tensor::TensorView& d_y, const tensor::TensorView& d_x, ops::GradWrite d_x_write);
void linear_backward(const Pass& p, const tensor::TensorView& x, LinearPlaces at, const tensor::TensorView& d_y,
                     const tensor::TensorView& d_x, ops::GradWrite d_x_write = ops::GradWrite::overwrite);
// Its two halves, where x is there only after d_x or d_x has room only after x. A CPU likes them together: what the
// first reads is at hand for the second.
void linear_backward_input(const Pass& p, LinearPlaces at, const tensor::TensorView& d_y,
                           const tensor::TensorView& d_x);
void linear_backward_weights(const Pass& p, const tensor::TensorView& x, LinearPlaces at,
                             const tensor::TensorView& d_y);

}  // namespace brim::model
