// SPDX-License-Identifier: Apache-2.0
#include "ops/unfold.h"

#include "ops/check.h"
#include "ops/kernel_table.h"

namespace brim::ops {

using tensor::DType;

namespace {

void check_unfold(const char* op, const TensorView& x, const TensorView& positions, const TensorView& y,
                  int64_t width) {
  BRIM_CHECK(width > 0 && width % 2 == 1 && width <= kMaxUnfold, "{}: width is {}, must be odd and at most {}", op,
             width, kMaxUnfold);
  check_view(op, "x", x, x.dtype, {x.rows(), x.cols()});
  check_view(op, "positions", positions, DType::i32, {x.rows()});
  check_view(op, "y", y, x.dtype, {x.rows(), x.cols() * width});
}

}  // namespace

void unfold(device::Stream& stream, const UnfoldArgs& a) {
  check_activation("unfold", "x", stream, a.x.dtype);
  check_unfold("unfold", a.x, a.positions, a.y, a.width);
  if (a.x.elements() == 0) return;
  const Work work{0, static_cast<double>(a.y.bytes()) + static_cast<double>(a.x.bytes())};
  dispatch(stream, a, work);
}

void unfold_grad(device::Stream& stream, const UnfoldGradArgs& a) {
  check_activation("unfold_grad", "d_x", stream, a.d_x.dtype);
  check_unfold("unfold_grad", a.d_x, a.positions, a.d_y, a.width);
  if (a.d_x.elements() == 0) return;
  const Work work{static_cast<double>(a.d_y.elements()),
                  static_cast<double>(a.d_y.bytes()) + 2.0 * static_cast<double>(a.d_x.bytes())};
  dispatch(stream, a, work);
}

}  // namespace brim::ops
