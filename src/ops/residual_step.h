// SPDX-License-Identifier: Apache-2.0
// residual_step: the update between two blocks of N-BEATS. For a block's output o = [backcast L | forecast F]:
//   r_next = (r - backcast) * mask,   f += forecast
// in fp32, because prices move by less than half types can represent. Its gradient gives d_o = [-d_r_next * mask | d_f]
// and turns d_r_next into the gradient that bypasses the block.
#pragma once
#include "ops/op.h"

namespace brim::ops {

using tensor::TensorView;

struct ResidualStepArgs {
  TensorView r;                               // [G,B,L] f32
  TensorView o;                               // [G,B,L+F] f32
  TensorView mask;                            // [G,B,L] u8
  TensorView r_next;                          // [G,B,L] f32, may be r; empty after the last block
  TensorView r_half;                          // [G,B,L] f16 or bf16: r_next rounded, or empty
  TensorView f;                               // [G,B,F] f32
  GradWrite f_write = GradWrite::accumulate;  // overwrite for the first block

  template <class F>
  void views(F&& g) const {
    for (const TensorView& v : {r, o, mask, r_next, r_half, f}) g(v);
  }
};
void residual_step(device::Stream& stream, const ResidualStepArgs& args);

struct ResidualStepGradArgs {
  TensorView d_r;     // [G,B,L] f32: d_r_next, becomes d_r_next * mask
  TensorView d_f;     // [G,B,F] f32
  TensorView mask;    // [G,B,L] u8
  TensorView d_o;     // [G,B,L+F], f32 or the matmul type
  bool last = false;  // last block: d_r is treated as zero, regardless of its contents

  template <class F>
  void views(F&& g) const {
    for (const TensorView& v : {d_r, d_f, mask, d_o}) g(v);
  }
};
void residual_step_grad(device::Stream& stream, const ResidualStepGradArgs& args);

}  // namespace brim::ops
