// SPDX-License-Identifier: Apache-2.0
#include "ops/adamw.h"

#include <cmath>

#include "ops/adam8_code.h"
#include "ops/check.h"
#include "ops/kernel_table.h"

namespace brim::ops {

using tensor::DType;

static_assert(kAdamBlock == kAdam8Block);

namespace {

void check_slab(const char* op, const char* name, const TensorView& view, DType dtype, const TensorView& like,
                int64_t n) {
  if (like.rank < 2)
    check_view(op, name, view, dtype, {n});
  else
    check_view(op, name, view, dtype, {like.dim[0], n});
}

}  // namespace

AdamWRow adamw_row(float lr, float beta1, float beta2, float eps, float weight_decay, int64_t step) {
  BRIM_CHECK(step >= 1, "adamw: step is {}, must be at least 1", step);
  BRIM_CHECK(beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1,
             "adamw: betas are {} and {}, must be at least 0 and below 1", beta1, beta2);
  const auto number = static_cast<double>(step), rate = static_cast<double>(lr);
  const double correction1 = 1 - std::pow(static_cast<double>(beta1), number),
               correction2 = 1 - std::pow(static_cast<double>(beta2), number);
  AdamWRow row;
  row.beta1 = beta1;
  row.beta2 = beta2;
  row.eps = eps;
  row.step_size = static_cast<float>(rate / correction1);
  row.correction = static_cast<float>(1 / std::sqrt(correction2));
  row.keep = static_cast<float>(1 - rate * static_cast<double>(weight_decay));
  return row;
}

void adamw(device::Stream& stream, const AdamWArgs& a) {
  const char* op = "adamw";
  const LaneSlab slab = lane_slab(a.master);
  const int64_t n = slab.n, blocks = (n + kAdamBlock - 1) / kAdamBlock;
  const bool bytes = a.m.dtype == DType::u8;
  check_slab(op, "master", a.master, DType::f32, a.master, n);
  check_slab(op, "grad", a.grad, DType::f32, a.master, n);
  check_slab(op, "m", a.m, bytes ? DType::u8 : DType::f32, a.master, n);
  check_slab(op, "v", a.v, bytes ? DType::u8 : DType::f32, a.master, n);
  if (bytes) {
    check_slab(op, "m_scale", a.m_scale, DType::f32, a.master, blocks);
    check_slab(op, "v_scale", a.v_scale, DType::f32, a.master, blocks);
  }
  if (a.copy) check_slab(op, "copy", a.copy, a.copy.dtype == DType::f16 ? DType::f16 : DType::bf16, a.master, n);
  check_optional(op, "grad_factor", a.grad_factor, DType::f32, {slab.lanes});
  check_view(op, "table", a.table.rows, DType::f32, {a.table.rows.rows(), slab.lanes, kAdamWRowFloats});
  BRIM_CHECK(a.table.rows.rows() > 0 && a.table.rows.contiguous(),
             "adamw: the table is {}, must be contiguous with at least one row", a.table.rows.shape_text());
  check_optional(op, "step", a.table.step, DType::i64, {1});
  if (n == 0 || slab.lanes == 0) return;
  Work work{16.0 * static_cast<double>(n * slab.lanes), 0};
  for (const TensorView& v : {a.master, a.grad, a.m, a.v, a.m_scale, a.v_scale, a.copy})
    if (v) work.bytes += static_cast<double>(v.bytes());
  work.bytes += static_cast<double>(a.master.bytes() + a.m.bytes() + a.v.bytes());  // read and written
  dispatch(stream, a, work);
}

void set_step(device::Stream& stream, const SetStepArgs& a) {
  check_view("set_step", "rows", a.rows, DType::f32, {a.rows.rows(), a.rows.dim[1], kAdamWRowFloats});
  dispatch(stream, a, {0, static_cast<double>(a.rows.bytes())});
}

void advance_step(device::Stream& stream, const AdvanceStepArgs& a) {
  check_view("advance_step", "step", a.step, DType::i64, {1});
  dispatch(stream, a, {1, 16});
}

void grad_norm(device::Stream& stream, const GradNormArgs& a) {
  const char* op = "grad_norm";
  const LaneSlab slab = lane_slab(a.grad);
  check_slab(op, "grad", a.grad, DType::f32, a.grad, slab.n);
  check_optional(op, "step", a.step, DType::i64, {1});
  if (a.step)
    check_view(op, "norm", a.norm, DType::f32, {a.norm.rows(), slab.lanes});
  else
    check_view(op, "norm", a.norm, DType::f32, {slab.lanes});
  BRIM_CHECK(a.norm.contiguous(), "grad_norm: norm {} must be contiguous", a.norm.shape_text());
  check_view(op, "factor", a.factor, DType::f32, {slab.lanes});
  BRIM_CHECK(a.max_norm >= 0, "grad_norm: max_norm is {}, must be 0 (no clipping) or more", a.max_norm);
  const Work work{2.0 * static_cast<double>(a.grad.elements()), static_cast<double>(a.grad.bytes())};
  dispatch(stream, a, work);
}

// One f64 per kNormElements of a lane.
int64_t grad_norm_scratch_bytes(int64_t elements, int64_t lanes) {
  return lanes * ((elements + kNormElements - 1) / kNormElements) * static_cast<int64_t>(sizeof(double));
}

}  // namespace brim::ops
