// SPDX-License-Identifier: Apache-2.0
// Convolution over the tokens of a text beside the first layer (DeBERTa v2 xlarge): norm(y + act(dropout(conv(x)))).
// Forward and backward.
#pragma once
#include "model/blocks/linear.h"
#include "model/blocks/norm.h"

namespace brim::model {

struct ConvolutionParams {
  LinearParams product;  // [H,H*width]; -1: none
  NormParams norm;
};

struct ConvolutionSaved {
  Operand unfolded;        // [T,H*width] input of the product
  tensor::TensorView raw;  // [T,H] input of the activation
  NormSaved norm;
};

// `x`: input of the first layer; `y`: its result.
Hidden convolve(const Pass& p, const ConvolutionParams& at, const tensor::TensorView& x, const tensor::TensorView& y,
                const NormResult& result, ConvolutionSaved* saved);

struct ConvolutionGrad {
  tensor::TensorView y;         // [T,H]
  tensor::TensorView unfolded;  // [T,H*width], to be added to the gradient of x by add_unfolded
};
ConvolutionGrad convolve_backward(const Pass& p, const ConvolutionParams& at, const ConvolutionSaved& saved,
                                  const tensor::TensorView& d_result);
void add_unfolded(const Pass& p, const ConvolutionGrad& d, const tensor::TensorView& d_x);

}  // namespace brim::model
