// SPDX-License-Identifier: Apache-2.0
// Task heads: from hidden states to the requested output and, in training, to losses and the gradient of the hidden
// states. Does not choose labels from scores.
#pragma once
#include "model/blocks/linear.h"
#include "model/blocks/norm.h"
#include "model/training_pass.h"

namespace brim::model {

// The matrix before the classes' one, its activation, and a norm in some families.
struct HeadDense {
  LinearParams at;
  NormParams norm;
};

struct HeadParams {
  HeadDense dense;        // sequence head
  HeadDense token_dense;  // token head; -1: none
  LinearParams sequence, token;
  ops::Activation activation = ops::Activation::tanh;  // after dense
  bool dropout_first = false;                          // sequence head: the same dropout also before its first matrix
};

// `x` is [T,H], or [B,H] with first_tokens. The result is valid until the end of the pass.
tensor::TensorView finish(const Pass& p, const HeadParams& at, const tensor::TensorView& x, bool first_tokens,
                          Output output);

// Writes logits and losses to `result`; returns the gradient of x.
tensor::TensorView finish_training(const Pass& p, const HeadParams& at, const tensor::TensorView& x, bool first_tokens,
                                   const LossSettings& loss, const TrainTargets& targets, TrainResult& result);

}  // namespace brim::model
