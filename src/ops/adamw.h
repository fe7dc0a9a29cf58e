// SPDX-License-Identifier: Apache-2.0
// Optimizer over one slab, or over the slabs of several lanes (independent models, [lanes,n]): fused AdamW with
// decoupled weight decay in fp32, writing the compute copy in the same pass; an 8-bit variant stores its moments
// block-wise in one byte each. grad_norm sums squares in a fixed order. Values that change per step are read from a
// device table, so that a captured step can be replayed. Learning-rate schedules are the caller's.
#pragma once
#include "ops/op.h"

namespace brim::ops {

using tensor::TensorView;

// Moments of 8-bit AdamW: blocks of this many elements share one f32 scale each.
constexpr int64_t kAdamBlock = 256;       // byte format: ops/adam8_code.h
constexpr int64_t kNormElements = 16384;  // gradients per partial sum of squares

// Constants of one step of a lane. step_size 0 with keep 1 leaves the weights unchanged.
struct AdamWRow {
  float beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f;
  float step_size = 0;   // rate / (1 - beta1^step)
  float correction = 1;  // 1 / sqrt(1 - beta2^step)
  float keep = 1;        // 1 - rate * decay
  float unused[2] = {0, 0};
};
constexpr int64_t kAdamWRowFloats = sizeof(AdamWRow) / sizeof(float);
// Computed in double. `step` is 1 for the first update.
AdamWRow adamw_row(float lr, float beta1, float beta2, float eps, float weight_decay, int64_t step);

// Table of rows [rows,lanes,kAdamWRowFloats] f32 and the current row: `step` [1] i64 modulo the number of rows; an
// empty `step` means row 0. Both on the device.
struct StepTable {
  TensorView rows, step;
};
struct AdamWArgs {
  TensorView master;  // [n] or [lanes,n] f32
  TensorView grad;    // like master
  TensorView m, v;    // like master; or u8 with m_scale, v_scale [(lanes,) ceil(n/kAdamBlock)] f32
  TensorView m_scale, v_scale;
  TensorView copy;  // f16 or bf16: weights read by the passes; empty if they read the master
  // [lanes] f32 on the device: multiplies gradients (clipping, loss scale, averaging); NaN or inf skips the lane's
  // update.
  TensorView grad_factor;
  StepTable table;
  bool decayed = true;  // false for biases and norms: `keep` is treated as 1

  template <class F>
  void views(F&& f) const {
    for (const TensorView& t : {master, grad, m, v, m_scale, v_scale, copy, grad_factor, table.rows, table.step}) f(t);
  }
};
void adamw(device::Stream& stream, const AdamWArgs& args);

// Sets every row of `rows` to `row`, for runs that set the constants step by step.
struct SetStepArgs {
  TensorView rows;  // [rows,lanes,kAdamWRowFloats] f32
  AdamWRow row;
  template <class F>
  void views(F&& f) const {
    f(rows);
  }
};
void set_step(device::Stream& stream, const SetStepArgs& args);

struct AdvanceStepArgs {
  TensorView step;  // [1] i64, incremented
  template <class F>
  void views(F&& f) const {
    f(step);
  }
};
void advance_step(device::Stream& stream, const AdvanceStepArgs& args);

struct GradNormArgs {
  TensorView grad;       // [n] or [lanes,n] f32
  TensorView norm;       // [lanes] f32: l2 norm of grad * grad_scale before clipping; or [rows,lanes] with `step`
  TensorView factor;     // [lanes] f32: grad_scale * min(1, max_norm / (norm + 1e-6)); NaN if the norm is not finite
  TensorView scratch;    // u8[grad_norm_scratch_bytes]
  TensorView step;       // [1] i64 on the device: writes row `step` modulo rows of norm; empty if norm has one row
  float grad_scale = 1;  // 1 / loss scale
  float max_norm = 0;    // 0: no clipping

  template <class F>
  void views(F&& f) const {
    for (const TensorView& t : {grad, norm, factor, scratch, step}) f(t);
  }
};
void grad_norm(device::Stream& stream, const GradNormArgs& args);
int64_t grad_norm_scratch_bytes(int64_t elements, int64_t lanes = 1);

// Lanes of a slab: [n] is one lane.
struct LaneSlab {
  int64_t lanes, n, stride;
};
inline LaneSlab lane_slab(const TensorView& v) {
  if (v.rank < 2) return {1, v.rows(), 0};
  return {v.dim[0], v.dim[1], v.stride[0]};
}

}  // namespace brim::ops
