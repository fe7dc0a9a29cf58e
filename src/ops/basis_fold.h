// SPDX-License-Identifier: Apache-2.0
// basis_fold: the output matrix of a trend or seasonality block, V = basisᵀ Θ in fp32, once per step, so that the block
// computes like a generic one. Its gradient is d_Θ = basis d_V. A bias is a matrix with one column.
#pragma once
#include "ops/op.h"

namespace brim::ops {

using tensor::TensorView;

struct BasisFoldArgs {
  TensorView basis;  // [G,P,N] f32: one function of time per row; lanes may share one (lane stride 0)
  TensorView theta;  // [G,P,W] f32
  TensorView v;      // [G,N,W] f32, or the matmul type

  template <class F>
  void views(F&& f) const {
    for (const TensorView& t : {basis, theta, v}) f(t);
  }
};
void basis_fold(device::Stream& stream, const BasisFoldArgs& args);

struct BasisFoldGradArgs {
  TensorView basis;    // [G,P,N] f32
  TensorView d_v;      // [G,N,W] f32
  TensorView d_theta;  // [G,P,W] f32
  GradWrite d_theta_write = GradWrite::overwrite;

  template <class F>
  void views(F&& f) const {
    for (const TensorView& t : {basis, d_v, d_theta}) f(t);
  }
};
void basis_fold_grad(device::Stream& stream, const BasisFoldGradArgs& args);

}  // namespace brim::ops
