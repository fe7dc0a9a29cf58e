// SPDX-License-Identifier: Apache-2.0
// cross_entropy: losses of logits and their gradient in one pass, in fp32. Hard targets (classes, or 0/1 for each class
// when multi-label), optionally mixed with a teacher's soft ones. Sums are taken in a fixed order.
// Hard, one class y:   (1-s) w[y] (-log p[y]) + s/K sum_k w[k] (-log p[k])            (PyTorch's weights and smoothing)
// Hard, multi-label:   mean_k w[k] BCE(logit[k], target[k])
// Soft, one class:     t² KL(softmax(teacher/t) || softmax(logits/t))
// Soft, multi-label:   t² mean_k KL of the two Bernoulli distributions sigmoid(·/t)
#pragma once
#include "ops/op.h"

namespace brim::ops {

using tensor::TensorView;

constexpr int64_t kLossRows = 16;         // rows whose losses are one partial sum
constexpr int32_t kIgnoredTarget = -100;  // rows with this target count for nothing, as in PyTorch

struct CrossEntropyArgs {
  TensorView logits;          // [rows,K] f32
  TensorView targets;         // [rows] i32, or [rows,K] f32 with `multi_label`
  TensorView class_weights;   // [K] f32 or empty
  TensorView teacher;         // [rows,K] f32 teacher logits, or empty
  TensorView loss;            // [1] f32: sum over rows of weight * loss (not averaged), added to what is there
  TensorView d_logits;        // [rows,K] f32 or activation type: gradient of the sum times `scale`
  TensorView scratch;         // u8[cross_entropy_scratch_bytes]: one partial sum a row block
  float scale = 1;            // 1 / (real samples, or summed weights) * loss scale
  float label_smoothing = 0;  // hard targets only: (1-s) on the class, s/K on all
  float hard_weight = 1;      // of the hard loss
  float soft_weight = 0;      // of temperature² * KL(softmax(teacher/t) || softmax(logits/t))
  float temperature = 1;
  bool multi_label = false;  // sigmoid and binary cross entropy, mean over K

  template <class F>
  void views(F&& f) const {
    for (const TensorView& v : {logits, targets, class_weights, teacher, loss, d_logits, scratch}) f(v);
  }
};
void cross_entropy(device::Stream& stream, const CrossEntropyArgs& args);
int64_t cross_entropy_scratch_bytes(const device::Stream& stream, int64_t rows, int threads);

}  // namespace brim::ops
