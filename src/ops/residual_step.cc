// SPDX-License-Identifier: Apache-2.0
#include "ops/residual_step.h"

#include "ops/check.h"
#include "ops/kernel_table.h"

namespace brim::ops {

using tensor::DType;

namespace {

void check_no_gaps(const char* op, std::initializer_list<TensorView> views) {
  for (const TensorView& v : views) BRIM_CHECK(!v || v.contiguous(), "{}: {} must be contiguous", op, v.shape_text());
}

}  // namespace

void residual_step(device::Stream& stream, const ResidualStepArgs& a) {
  const char* op = "residual_step";
  const int64_t G = a.r.rows(), B = a.r.dim[1], L = a.r.cols(), F = a.f.cols();
  check_view(op, "r", a.r, DType::f32, {G, B, L});
  check_view(op, "o", a.o, DType::f32, {G, B, L + F});
  check_view(op, "mask", a.mask, DType::u8, {G, B, L});
  check_optional(op, "r_next", a.r_next, DType::f32, {G, B, L});
  check_optional(op, "r_half", a.r_half, a.r_half.dtype == DType::f16 ? DType::f16 : DType::bf16, {G, B, L});
  check_view(op, "f", a.f, DType::f32, {G, B, F});
  BRIM_CHECK(a.r_next || !a.r_half, "residual_step: r_half requires r_next");
  check_no_gaps(op, {a.r, a.o, a.mask, a.r_next, a.r_half, a.f});
  if (G == 0 || B == 0) return;
  Work work{static_cast<double>(2 * a.o.elements()), static_cast<double>(a.o.bytes() + a.f.bytes())};
  if (a.r_next) work.bytes += static_cast<double>(a.r.bytes() + a.r_next.bytes() + a.mask.bytes());
  if (a.r_half) work.bytes += static_cast<double>(a.r_half.bytes());
  dispatch(stream, a, work);
}

void residual_step_grad(device::Stream& stream, const ResidualStepGradArgs& a) {
  const char* op = "residual_step_grad";
  const int64_t G = a.d_r.rows(), B = a.d_r.dim[1], L = a.d_r.cols(), F = a.d_f.cols();
  check_view(op, "d_r", a.d_r, DType::f32, {G, B, L});
  check_view(op, "d_f", a.d_f, DType::f32, {G, B, F});
  check_view(op, "mask", a.mask, DType::u8, {G, B, L});
  check_activation(op, "d_o", stream, a.d_o.dtype);
  check_view(op, "d_o", a.d_o, a.d_o.dtype, {G, B, L + F});
  check_no_gaps(op, {a.d_r, a.d_f, a.mask, a.d_o});
  if (G == 0 || B == 0) return;
  const Work work{static_cast<double>(a.d_r.elements()),
                  static_cast<double>(2 * a.d_r.bytes() + a.d_f.bytes() + a.mask.bytes() + a.d_o.bytes())};
  dispatch(stream, a, work);
}

}  // namespace brim::ops
