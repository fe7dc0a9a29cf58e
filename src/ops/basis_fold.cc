// SPDX-License-Identifier: Apache-2.0
#include "ops/basis_fold.h"

#include "ops/check.h"
#include "ops/kernel_table.h"

namespace brim::ops {

using tensor::DType;

void basis_fold(device::Stream& stream, const BasisFoldArgs& a) {
  const char* op = "basis_fold";
  const int64_t G = a.theta.rows(), P = a.theta.dim[1], W = a.theta.cols(), N = a.basis.cols();
  check_view(op, "basis", a.basis, DType::f32, {G, P, N});
  check_view(op, "theta", a.theta, DType::f32, {G, P, W});
  check_activation(op, "v", stream, a.v.dtype);
  check_view(op, "v", a.v, a.v.dtype, {G, N, W});
  if (a.v.elements() == 0) return;
  const double products = static_cast<double>(a.v.elements() * P);
  dispatch(stream, a, {2 * products, static_cast<double>(a.theta.bytes() + a.basis.bytes() + a.v.bytes())});
}

void basis_fold_grad(device::Stream& stream, const BasisFoldGradArgs& a) {
  const char* op = "basis_fold_grad";
  const int64_t G = a.d_theta.rows(), P = a.d_theta.dim[1], W = a.d_theta.cols(), N = a.basis.cols();
  check_view(op, "basis", a.basis, DType::f32, {G, P, N});
  check_view(op, "d_v", a.d_v, DType::f32, {G, N, W});
  check_view(op, "d_theta", a.d_theta, DType::f32, {G, P, W});
  if (a.d_theta.elements() == 0) return;
  const double products = static_cast<double>(a.d_v.elements() * P);
  dispatch(stream, a, {2 * products, static_cast<double>(a.d_theta.bytes() + a.basis.bytes() + a.d_v.bytes())});
}

}  // namespace brim::ops
