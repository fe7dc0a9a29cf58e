// SPDX-License-Identifier: Apache-2.0
#include "ops/amax.h"

#include "ops/check.h"
#include "ops/kernel_table.h"

namespace brim::ops {

void amax(device::Stream& stream, const AmaxArgs& a) {
  check_activation("amax", "x", stream, a.x.dtype);
  check_view("amax", "amax", a.amax, tensor::DType::f32, {1});
  BRIM_CHECK(a.x.rank <= 2 && (a.x.rank < 2 || a.x.stride[1] == 1), "amax: x is {}, must have rows of neighbours",
             a.x.shape_text());
  if (a.x.elements() == 0) return;
  dispatch(stream, Zone::convert, a, Work{static_cast<double>(a.x.elements()), static_cast<double>(a.x.bytes())},
           &KernelTable::amax);
}

void fp8_scale(device::Stream& stream, const Fp8ScaleArgs& a) {
  const int64_t n = a.amax.rows();
  check_view("fp8_scale", "amax", a.amax, tensor::DType::f32, {n});
  check_view("fp8_scale", "quantise", a.quantise, tensor::DType::f32, {n});
  check_view("fp8_scale", "dequantise", a.dequantise, tensor::DType::f32, {n});
  BRIM_CHECK(a.margin > 0, "fp8_scale: margin is {}, must be above 0", a.margin);
  if (n == 0) return;
  dispatch(stream, Zone::convert, a, Work{2.0 * static_cast<double>(n), 12.0 * static_cast<double>(n)},
           &KernelTable::fp8_scale);
}

}  // namespace brim::ops
