// SPDX-License-Identifier: Apache-2.0
// From hidden states to what a pass was asked for, and in training to losses and the gradient of the hidden states.
#pragma once
#include "model/blocks/linear.h"
#include "model/training_pass.h"

namespace brim::model {

struct HeadPlaces {
  LinearPlaces dense, sequence, token;
  ops::Activation activation = ops::Activation::tanh;  // between the sequence head's two matrices
  bool dropout_first = false;                          // of the sequence head: also before its first matrix
};

// `x` is [T,H], or [B,H] when first_tokens. The result is kept to the end of the pass.
tensor::TensorView finish(const Pass& p, const HeadPlaces& at, const tensor::TensorView& x, bool first_tokens,
                          Output output);

// Logits and losses go to `result`; returns the gradient of x.
tensor::TensorView finish_training(const Pass& p, const HeadPlaces& at, const tensor::TensorView& x, bool first_tokens,
                                   const LossSettings& loss, const TrainTargets& targets, TrainResult& result);

}  // namespace brim::model
