// SPDX-License-Identifier: Apache-2.0
// From hidden states to what a pass was asked for, and in training to losses and the gradient of the hidden states.
#pragma once
#include "model/blocks/linear.h"
#include "model/blocks/norm.h"
#include "model/training_pass.h"

namespace brim::model {

// The matrix before the one that has the classes, its activation, and a norm where a family has one.
struct HeadDense {
  LinearPlaces at;
  NormPlaces norm;
};

struct HeadPlaces {
  HeadDense dense;        // the sequence head's
  HeadDense token_dense;  // the token head's; -1: none
  LinearPlaces sequence, token;
  ops::Activation activation = ops::Activation::tanh;  // after a dense
  bool dropout_first = false;                          // of the sequence head: also before its first matrix
};

// `x` is [T,H], or [B,H] when first_tokens. The result is kept to the end of the pass.
tensor::TensorView finish(const Pass& p, const HeadPlaces& at, const tensor::TensorView& x, bool first_tokens,
                          Output output);

// Logits and losses go to `result`; returns the gradient of x.
tensor::TensorView finish_training(const Pass& p, const HeadPlaces& at, const tensor::TensorView& x, bool first_tokens,
                                   const LossSettings& loss, const TrainTargets& targets, TrainResult& result);

}  // namespace brim::model
