// SPDX-License-Identifier: Apache-2.0
#include "ops/glu.h"

#include "ops/check.h"
#include "ops/kernel_table.h"

namespace brim::ops {

using tensor::DType;

void glu(device::Stream& stream, const GluArgs& a) {
  const int64_t T = a.x.rows(), F = a.y.cols();
  if (target_kind(stream) != device::DeviceKind::cpu || a.x.dtype != DType::bf16)
    check_activation("glu", "x", stream, a.x.dtype);
  check_view("glu", "x", a.x, a.x.dtype, {T, 2 * F});
  check_view("glu", "y", a.y, a.x.dtype, {T, F});
  if (a.y.elements() == 0) return;
  const Work work{20.0 * static_cast<double>(a.y.elements()), static_cast<double>(a.x.bytes() + a.y.bytes())};
  dispatch(stream, a, work);
}

void glu_grad(device::Stream& stream, const GluGradArgs& a) {
  const int64_t T = a.x.rows(), F = a.d_y.cols();
  check_activation("glu_grad", "x", stream, a.x.dtype);
  check_view("glu_grad", "x", a.x, a.x.dtype, {T, 2 * F});
  check_view("glu_grad", "d_y", a.d_y, a.x.dtype, {T, F});
  check_view("glu_grad", "d_x", a.d_x, a.x.dtype, {T, 2 * F});
  check_optional("glu_grad", "y", a.y, a.x.dtype, {T, F});
  if (a.d_y.elements() == 0) return;
  const Work work{50.0 * static_cast<double>(a.d_y.elements()),
                  static_cast<double>(a.x.bytes() + a.d_y.bytes() + a.d_x.bytes() + (a.y ? a.y.bytes() : 0))};
  dispatch(stream, a, work);
}

}  // namespace brim::ops
