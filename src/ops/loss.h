// SPDX-License-Identifier: Apache-2.0
// cross_entropy: loss of logits and its gradient in one pass, in fp32. Hard targets (classes, or 0/1 per class if
// multi-label), optionally mixed with soft targets from teachers: the mean of their softened probabilities. Sums have a
// fixed order.
//   hard, one class y:   (1-s) w[y] (-log p[y]) + s/K sum_k w[k] (-log p[k])   (weights and smoothing as in PyTorch)
//   hard, multi-label:   mean_k w[k] BCE(logit[k], target[k])
//   soft, one class:     t² KL(mean_i softmax(teacher_i/t) || softmax(logits/t))
//   soft, multi-label:   t² mean_k KL(Bernoulli(mean_i sigmoid(teacher_i/t)) || Bernoulli(sigmoid(logits/t)))
#pragma once
#include "ops/op.h"

namespace brim::ops {

using tensor::TensorView;

constexpr int64_t kLossRows = 16;         // rows per partial sum of losses
constexpr int32_t kIgnoredTarget = -100;  // rows with this target are ignored, as in PyTorch
constexpr int32_t kNoLabel = -101;        // these rows have only a soft loss; multi-label: all targets below 0
constexpr int kMostTeachers = 8;

struct CrossEntropyArgs {
  TensorView logits;          // [rows,K] f32
  TensorView targets;         // [rows] i32, or [rows,K] f32 with `multi_label`
  TensorView class_weights;   // [K] f32 or empty
  TensorView teacher;         // [n*rows,K] f32: concatenated logits of n teachers; or empty
  TensorView loss;            // [1] f32: sum over rows of weight * loss (not averaged), accumulated
  TensorView d_logits;        // [rows,K] f32 or activation type: gradient of the sum times `scale`
  TensorView scratch;         // u8[cross_entropy_scratch_bytes]: one partial sum per row block
  float scale = 1;            // 1 / (number of samples, or sum of weights) * loss scale
  float label_smoothing = 0;  // hard targets only: (1-s) on the class, s/K on all
  float hard_weight = 1;      // weight of the hard loss
  float soft_weight = 0;      // weight of the soft loss
  float temperature = 1;
  bool multi_label = false;  // sigmoid and binary cross entropy, mean over K

  int teachers() const { return !teacher || logits.rows() == 0 ? 0 : static_cast<int>(teacher.rows() / logits.rows()); }
  template <class F>
  void views(F&& f) const {
    for (const TensorView& v : {logits, targets, class_weights, teacher, loss, d_logits, scratch}) f(v);
  }
};
void cross_entropy(device::Stream& stream, const CrossEntropyArgs& args);
int64_t cross_entropy_scratch_bytes(const device::Stream& stream, int64_t rows, int threads);

// squared_error: regression. The loss of a row is mean_k (logit[k] - target[k])².
struct SquaredErrorArgs {
  TensorView logits, targets;  // [rows,K] f32
  TensorView loss;             // [1] f32: sum over rows, accumulated
  TensorView d_logits;         // [rows,K] f32 or activation type: gradient of the sum times `scale`
  TensorView scratch;          // u8[cross_entropy_scratch_bytes]
  float scale = 1;

  template <class F>
  void views(F&& f) const {
    for (const TensorView& v : {logits, targets, loss, d_logits, scratch}) f(v);
  }
};
void squared_error(device::Stream& stream, const SquaredErrorArgs& args);

}  // namespace brim::ops
