// SPDX-License-Identifier: Apache-2.0
// cross_entropy: losses of logits and their gradient in one pass, in fp32. Hard targets (classes, or 0/1 for each class
// when multi-label), optionally mixed with teachers' soft ones: the mean of their softened probabilities. Sums are
// taken in a fixed order.
// Hard, one class y:   (1-s) w[y] (-log p[y]) + s/K sum_k w[k] (-log p[k])            (PyTorch's weights and smoothing)
// Hard, multi-label:   mean_k w[k] BCE(logit[k], target[k])
// Soft, one class:     t² KL(mean_i softmax(teacher_i/t) || softmax(logits/t))
// Soft, multi-label:   t² mean_k KL of two Bernoulli distributions: mean_i sigmoid(teacher_i/t) and sigmoid(logits/t)
#pragma once
#include "ops/op.h"

namespace brim::ops {

using tensor::TensorView;

constexpr int64_t kLossRows = 16;         // rows whose losses are one partial sum
constexpr int32_t kIgnoredTarget = -100;  // rows with this target count for nothing, as in PyTorch
constexpr int32_t kNoLabel = -101;        // of these rows the soft loss counts alone; multi-label: every target below 0
constexpr int kMostTeachers = 8;

struct CrossEntropyArgs {
  TensorView logits;          // [rows,K] f32
  TensorView targets;         // [rows] i32, or [rows,K] f32 with `multi_label`
  TensorView class_weights;   // [K] f32 or empty
  TensorView teacher;         // [n*rows,K] f32: the logits of n teachers, one after the other; or empty
  TensorView loss;            // [1] f32: sum over rows of weight * loss (not averaged), added to what is there
  TensorView d_logits;        // [rows,K] f32 or activation type: gradient of the sum times `scale`
  TensorView scratch;         // u8[cross_entropy_scratch_bytes]: one partial sum a row block
  float scale = 1;            // 1 / (real samples, or summed weights) * loss scale
  float label_smoothing = 0;  // hard targets only: (1-s) on the class, s/K on all
  float hard_weight = 1;      // of the hard loss
  float soft_weight = 0;      // of the soft loss
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

// squared_error: regression. A row's loss is mean_k (logit[k] - target[k])².
struct SquaredErrorArgs {
  TensorView logits, targets;  // [rows,K] f32
  TensorView loss;             // [1] f32: sum over rows, added to what is there
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
