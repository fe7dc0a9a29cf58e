// SPDX-License-Identifier: Apache-2.0
#include "ops/amax.h"

#include "ops/check.h"
#include "ops/kernel_table.h"

namespace brim::ops {
namespace {

Work small_work(int64_t sites) { return {2.0 * static_cast<double>(sites), 12.0 * static_cast<double>(sites)}; }

}  // namespace

void amax(device::Stream& stream, const AmaxArgs& a) {
  check_activation("amax", "x", stream, a.x.dtype);
  check_view("amax", "amax", a.amax, tensor::DType::f32, {1});
  BRIM_CHECK(a.x.rank <= 2 && (a.x.rank < 2 || a.x.stride[1] == 1), "amax: x is {}, must have contiguous rows",
             a.x.shape_text());
  if (a.x.elements() == 0) return;
  dispatch(stream, a, Work{static_cast<double>(a.x.elements()), static_cast<double>(a.x.bytes())});
}

void fp8_scale(device::Stream& stream, const Fp8ScaleArgs& a) {
  const int64_t n = a.amax.rows();
  check_view("fp8_scale", "amax", a.amax, tensor::DType::f32, {n});
  check_view("fp8_scale", "scale", a.scale, tensor::DType::f32, {n});
  check_optional("fp8_scale", "inverse", a.inverse, tensor::DType::f32, {n, 1});
  BRIM_CHECK(a.margin > 0, "fp8_scale: margin is {}, must be above 0", a.margin);
  if (n == 0) return;
  dispatch(stream, a, small_work(n));
}

void fp8_remember(device::Stream& stream, const Fp8RememberArgs& a) {
  const int64_t n = a.amax.rows();
  check_view("fp8_remember", "amax", a.amax, tensor::DType::f32, {n});
  check_view("fp8_remember", "history", a.history, tensor::DType::f32, {n, kFp8History});
  BRIM_CHECK(a.unit > 0, "fp8_remember: unit is {}, must be above 0", a.unit);
  if (n == 0) return;
  dispatch(stream, a, small_work(n * kFp8History));
}

void fp8_delayed_scale(device::Stream& stream, const Fp8DelayedScaleArgs& a) {
  const int64_t n = a.scale.rows();
  check_view("fp8_delayed_scale", "history", a.history, tensor::DType::f32, {n, kFp8History});
  check_view("fp8_delayed_scale", "scale", a.scale, tensor::DType::f32, {n});
  check_optional("fp8_delayed_scale", "inverse", a.inverse, tensor::DType::f32, {n, 1});
  BRIM_CHECK(a.unit > 0 && a.margin > 0, "fp8_delayed_scale: unit {} and margin {} must be above 0", a.unit, a.margin);
  if (n == 0) return;
  dispatch(stream, a, small_work(n * kFp8History));
}

}  // namespace brim::ops
