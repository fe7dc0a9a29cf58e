// SPDX-License-Identifier: Apache-2.0
// The optimizer over one slab: fused AdamW with decoupled weight decay, in fp32, with the compute copy written in the
// same pass; an 8-bit variant keeps its moments in one byte each, block-wise. grad_norm sums squares in a fixed order.
#pragma once
#include "ops/op.h"

namespace brim::ops {

using tensor::TensorView;

// Moments of 8-bit AdamW: blocks of this many elements share one f32 scale each.
constexpr int64_t kAdamBlock = 256;       // ops/adam8_code.h says what the bytes mean
constexpr int64_t kNormElements = 16384;  // gradients whose squares are one partial sum

struct AdamWArgs {
  TensorView master;  // [n] f32
  TensorView grad;    // [n] f32
  TensorView m, v;    // [n] f32; or [n] u8 with m_scale, v_scale [ceil(n/kAdamBlock)] f32
  TensorView m_scale, v_scale;
  TensorView copy;         // [n] f16 or bf16: the weights the passes read; empty when they read the master
  TensorView grad_factor;  // [1] f32 on the device: multiplies gradients (clipping, loss scale, averaging); NaN or inf:
                           // skip the update
  float lr = 0, beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f, weight_decay = 0;  // weight_decay 0 for biases and norms
  int64_t step = 1;                                                           // 1 for the first update: bias correction

  template <class F>
  void views(F&& f) const {
    for (const TensorView& t : {master, grad, m, v, m_scale, v_scale, copy, grad_factor}) f(t);
  }
};
void adamw(device::Stream& stream, const AdamWArgs& args);

struct GradNormArgs {
  TensorView grad;       // [n] f32
  TensorView norm;       // [1] f32: the l2 norm, not clipped, of grad * grad_scale
  TensorView factor;     // [1] f32: grad_scale * min(1, max_norm / (norm + 1e-6)); NaN when the norm is not finite
  TensorView scratch;    // u8[grad_norm_scratch_bytes]
  float grad_scale = 1;  // 1 / loss scale
  float max_norm = 0;    // 0: no clipping

  template <class F>
  void views(F&& f) const {
    for (const TensorView& t : {grad, norm, factor, scratch}) f(t);
  }
};
void grad_norm(device::Stream& stream, const GradNormArgs& args);
int64_t grad_norm_scratch_bytes(int64_t elements);

}  // namespace brim::ops
