// SPDX-License-Identifier: Apache-2.0
// Layer norm of a sum, which is made on the way, and its gradient.
#pragma once
#include "model/pass.h"

namespace brim::model {

struct NormPlaces {
  int64_t gamma = -1, beta = -1;
};

struct NormSaved {
  tensor::TensorView sum;         // [rows,H] before the norm
  tensor::TensorView mean, rstd;  // [rows] f32
};

// Where the result goes, and the fp8 scale in which its reader wants a copy. Empty views are allocated.
struct NormResult {
  Hidden to = {};
  Fp8Scale fp8 = {};
  bool keep_sum = false;  // also when scoring
};

// LN(dropout(pending) + x). When the sum is kept (in training, where `saved` is given) it is in the memory of
// `pending`.
Hidden norm(const Pass& p, NormPlaces at, const Hidden& x, const NormResult& result, const ops::Dropout& dropout,
            NormSaved* saved);
// The norm's output again, from the kept sum.
tensor::TensorView norm_again(const Pass& p, NormPlaces at, const NormSaved& saved);

struct NormGrad {
  tensor::TensorView residual, x;  // the same view when there is no dropout
};
// `into`: what the sum's gradient is added to, where the sum has other readers; else it is a tensor of its own. `bias`:
// of the product that made x; its gradient is summed on the way.
NormGrad norm_backward(const Pass& p, NormPlaces at, const NormSaved& saved, const ops::Dropout& dropout,
                       const tensor::TensorView& d_y, const tensor::TensorView& into = {}, int64_t bias = -1);

}  // namespace brim::model
