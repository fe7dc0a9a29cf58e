// SPDX-License-Identifier: Apache-2.0
#include "ops/adamw.h"

#include "ops/adam8_code.h"
#include "ops/check.h"
#include "ops/kernel_table.h"

namespace brim::ops {

using tensor::DType;

static_assert(kAdamBlock == kAdam8Block);

void adamw(device::Stream& stream, const AdamWArgs& a) {
  const char* op = "adamw";
  const int64_t n = a.master.rows(), blocks = (n + kAdamBlock - 1) / kAdamBlock;
  const bool bytes = a.m.dtype == DType::u8;
  check_view(op, "master", a.master, DType::f32, {n});
  check_view(op, "grad", a.grad, DType::f32, {n});
  check_view(op, "m", a.m, bytes ? DType::u8 : DType::f32, {n});
  check_view(op, "v", a.v, bytes ? DType::u8 : DType::f32, {n});
  if (bytes) {
    check_view(op, "m_scale", a.m_scale, DType::f32, {blocks});
    check_view(op, "v_scale", a.v_scale, DType::f32, {blocks});
  }
  check_optional(op, "copy", a.copy, a.copy.dtype == DType::f16 ? DType::f16 : DType::bf16, {n});
  check_optional(op, "grad_factor", a.grad_factor, DType::f32, {1});
  BRIM_CHECK(a.step >= 1, "adamw: step is {}, the first is 1", a.step);
  BRIM_CHECK(a.beta1 >= 0 && a.beta1 < 1 && a.beta2 >= 0 && a.beta2 < 1,
             "adamw: betas are {} and {}, must be at least 0 and below 1", a.beta1, a.beta2);
  if (n == 0) return;
  Work work{16.0 * static_cast<double>(n), 0};
  a.views([&](const tensor::TensorView& v) {
    if (v) work.bytes += static_cast<double>(v.bytes());
  });
  work.bytes += static_cast<double>(a.master.bytes() + a.m.bytes() + a.v.bytes());  // read and written
  dispatch(stream, Zone::adamw, a, work, &KernelTable::adamw);
}

void grad_norm(device::Stream& stream, const GradNormArgs& a) {
  const char* op = "grad_norm";
  check_view(op, "grad", a.grad, DType::f32, {a.grad.rows()});
  check_view(op, "norm", a.norm, DType::f32, {1});
  check_view(op, "factor", a.factor, DType::f32, {1});
  BRIM_CHECK(a.max_norm >= 0, "grad_norm: max_norm is {}, must be 0 (no clipping) or more", a.max_norm);
  const Work work{2.0 * static_cast<double>(a.grad.rows()), static_cast<double>(a.grad.bytes())};
  dispatch(stream, Zone::grad_norm, a, work, &KernelTable::grad_norm);
}

// One f64 for every kNormElements.
int64_t grad_norm_scratch_bytes(int64_t elements) {
  return (elements + kNormElements - 1) / kNormElements * static_cast<int64_t>(sizeof(double));
}

}  // namespace brim::ops
