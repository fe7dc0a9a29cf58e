// SPDX-License-Identifier: Apache-2.0
// Layer norm with a fused residual sum, and its gradient. Does not handle other kinds of norms.
#pragma once
#include "model/blocks/linear.h"

namespace brim::model {

struct NormParams {
  int64_t gamma = -1, beta = -1;
};

// Tensors for a norm's gradient: its result, which is kept anyway if products read it, or the sum before it.
struct NormSaved {
  tensor::TensorView y;          // [rows,H]
  tensor::TensorView sum, mean;  // [rows,H], [rows] f32; empty if y is set
  tensor::TensorView rstd;       // [rows] f32
};

// Destination of the result and the matrix that reads it, which may need fp8 copies. Empty views are allocated.
struct NormResult {
  Hidden to = {};
  int64_t reader = -1;
  bool keep_sum = false;      // also in inference
  bool undone = false;        // training: the gradient inverts the result; else it reads the sum
  bool keeps_columns = true;  // training: kept for the reader's gradient instead of recomputed
};

// LN(dropout(pending) + x). If the sum is kept (in training, with `saved`, unless the gradient inverts the result), it
// is in the memory of `pending`.
Hidden norm(const Pass& p, NormParams at, const Hidden& x, const NormResult& result, const ops::Dropout& dropout,
            NormSaved* saved);
// Recomputes the norm's result from the kept sum.
tensor::TensorView norm_again(const Pass& p, NormParams at, const NormSaved& saved);

struct NormGrad {
  tensor::TensorView residual;
  Operand x;  // the same view without dropout; in fp8 with its copies
};
// `into`: tensor to add the sum's gradient to, if the sum has other readers; else a new tensor is allocated. `product`:
// the product that computed x; its bias's gradient is accumulated in the same pass, and in fp8 copies are made for its
// other gradients.
NormGrad norm_backward(const Pass& p, NormParams at, const NormSaved& saved, const ops::Dropout& dropout,
                       const tensor::TensorView& d_y, const tensor::TensorView& into = {}, LinearParams product = {});

}  // namespace brim::model
