// SPDX-License-Identifier: Apache-2.0
// unfold: a row and its neighbours in the same sequence side by side, which turns a convolution over tokens into a
// matrix product. Columns are in the order of a stored convolution: all offsets of channel 0 first.
#pragma once
#include "ops/op.h"

namespace brim::ops {

using tensor::TensorView;

constexpr int64_t kMaxUnfold = 31;

// y[t][c * width + i] = x[t + i - width / 2][c]; zero beyond the ends of the sequence.
struct UnfoldArgs {
  TensorView x;          // [T,C]
  TensorView positions;  // [T] i32, ascending within a sequence: neighbours are the rows with neighbouring positions
  TensorView y;          // [T,C*width], same type
  int64_t width = 3;     // odd

  template <class F>
  void views(F&& f) const {
    for (const TensorView& v : {x, positions, y}) f(v);
  }
};
void unfold(device::Stream& stream, const UnfoldArgs& args);

// d_x[t][c] += sum of d_y over the elements that x[t][c] was copied to.
struct UnfoldGradArgs {
  TensorView d_y, positions, d_x;
  int64_t width = 3;

  template <class F>
  void views(F&& f) const {
    for (const TensorView& v : {d_y, positions, d_x}) f(v);
  }
};
void unfold_grad(device::Stream& stream, const UnfoldGradArgs& args);

}  // namespace brim::ops
