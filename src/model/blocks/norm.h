// SPDX-License-Identifier: Apache-2.0
// Layer norm of a sum, which is made on the way, and its gradient.
#pragma once
#include "model/blocks/linear.h"

namespace brim::model {

struct NormPlaces {
  int64_t gamma = -1, beta = -1;
};

// What a norm's gradient reads: its result, which is kept anyway where products read it, or the sum before it.
struct NormSaved {
  tensor::TensorView y;          // [rows,H]
  tensor::TensorView sum, mean;  // [rows,H], [rows] f32; empty where y is there
  tensor::TensorView rstd;       // [rows] f32
};

// Where the result goes, and the matrix that reads it, which may want copies in fp8. Empty views are allocated.
struct NormResult {
  Hidden to = {};
  int64_t reader = -1;
  bool keep_sum = false;      // also when scoring
  bool undone = false;        // training: the gradient undoes the result; else it reads the sum
  bool keeps_columns = true;  // training: the reader's gradient reads them, rather than making them again
};

// LN(dropout(pending) + x). When the sum is kept (in training, where `saved` is given, unless the gradient undoes the
// result) it is in the memory of `pending`.
Hidden norm(const Pass& p, NormPlaces at, const Hidden& x, const NormResult& result, const ops::Dropout& dropout,
            NormSaved* saved);
// The norm's result again, from the kept sum.
tensor::TensorView norm_again(const Pass& p, NormPlaces at, const NormSaved& saved);

struct NormGrad {
  tensor::TensorView residual;
  Operand x;  // the same view when there is no dropout; in fp8 with its copies
};
// `into`: what the sum's gradient is added to, where the sum has other readers; else it is a tensor of its own.
// `product`: that made x; its bias's gradient is summed on the way, and in fp8 copies are made for its others.
NormGrad norm_backward(const Pass& p, NormPlaces at, const NormSaved& saved, const ops::Dropout& dropout,
                       const tensor::TensorView& d_y, const tensor::TensorView& into = {}, LinearPlaces product = {});

}  // namespace brim::model
