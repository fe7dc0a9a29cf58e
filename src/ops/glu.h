// SPDX-License-Identifier: Apache-2.0
// glu: the activated first half of a row times the second half: y = activation(x[:, :F]) * x[:, F:].
#pragma once
#include "ops/op.h"

namespace brim::ops {

using tensor::TensorView;

struct GluArgs {
  TensorView x;  // [T,2F]. CPU: f32 or bf16
  TensorView y;  // [T,F], type of x
  Activation activation = Activation::gelu;
  template <class F>
  void views(F&& f) const {
    for (const TensorView& v : {x, y}) f(v);
  }
};
void glu(device::Stream& stream, const GluArgs& args);

struct GluGradArgs {
  TensorView x;    // as in the forward pass, f32 on the CPU
  TensorView d_y;  // [T,F]
  TensorView d_x;  // [T,2F]; may be x
  TensorView y;    // [T,F]: if given, recomputes the output of glu; may be d_y
  Activation activation = Activation::gelu;
  template <class F>
  void views(F&& f) const {
    for (const TensorView& v : {x, d_y, d_x, y}) f(v);
  }
};
void glu_grad(device::Stream& stream, const GluGradArgs& args);

}  // namespace brim::ops
