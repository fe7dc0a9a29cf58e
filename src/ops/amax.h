// SPDX-License-Identifier: Apache-2.0
// Scaling factors for fp8 that use the full range of e4m3. `amax` finds the largest magnitude of a tensor and
// `fp8_scale` converts such maxima to factors: for weights, and for everything in the first step of a run. Later steps
// use factors from the maxima of earlier steps (delayed scaling), because a separate pass to find the maximum would
// cost as much as fp8 gains: `fp8_remember` ends a step, `fp8_delayed_scale` begins one.
#pragma once
#include "ops/dropout.h"  // BRIM_HOST_DEVICE
#include "ops/fp8_code.h"
#include "ops/op.h"

namespace brim::ops {

using tensor::TensorView;

struct AmaxArgs {
  TensorView x;     // any shape; f32 on the CPU, an activation type on CUDA
  TensorView amax;  // [1] f32: updated to max(amax, max |x|); infinite if x has a NaN
  template <class F>
  void views(F&& f) const {
    for (const TensorView& v : {x, amax}) f(v);
  }
};
void amax(device::Stream& stream, const AmaxArgs& args);

struct Fp8ScaleArgs {
  TensorView amax;     // [n] f32
  TensorView scale;    // [n] f32: 448 / (amax * margin); 1 if amax is 0 or not finite
  TensorView inverse;  // [n,1] f32: 1 / scale, with the row stride required by matmuls; may be empty
  float margin = 1;    // headroom above the largest value seen
  template <class F>
  void views(F&& f) const {
    for (const TensorView& v : {amax, scale, inverse}) f(v);
  }
};
void fp8_scale(device::Stream& stream, const Fp8ScaleArgs& args);

constexpr int64_t kFp8ScaleBytes = 16;  // alignment of scales required by cuBLASLt
constexpr int64_t kFp8History = 16;     // number of steps in the history

// Sites from `first_gradient` on are gradients. They scale with `unit` (one over the samples of a step), which varies
// between steps, so their maxima are stored divided by it.
struct Fp8RememberArgs {
  TensorView amax;     // [n] f32 of this step; reset to 0
  TensorView history;  // [n,kFp8History] f32, newest first; unchanged for sites with a non-finite maximum
  int64_t first_gradient = 0;
  float unit = 1;
  template <class F>
  void views(F&& f) const {
    for (const TensorView& v : {amax, history}) f(v);
  }
};
void fp8_remember(device::Stream& stream, const Fp8RememberArgs& args);

struct Fp8DelayedScaleArgs {
  TensorView history;  // [n,kFp8History] f32
  // [n] f32: 448 / (largest in the history * margin). Without history: 1, or for gradients as if their maximum were
  // `unit`.
  TensorView scale;
  TensorView inverse;  // [n,1] f32: 1 / scale; may be empty
  int64_t first_gradient = 0;
  float unit = 1, margin = 1;
  template <class F>
  void views(F&& f) const {
    for (const TensorView& v : {history, scale, inverse}) f(v);
  }
};
void fp8_delayed_scale(device::Stream& stream, const Fp8DelayedScaleArgs& args);

// For both backends: expected maximum of a site, without margin.
BRIM_HOST_DEVICE static inline float fp8_expected(float remembered, bool gradient, float unit) {
  if (!gradient) return remembered;
  return remembered > 0 ? remembered * unit : unit;
}
// The lower bound is below any meaningful tensor and keeps the factor finite.
BRIM_HOST_DEVICE static inline float fp8_scale_of(float most) {
  return most > 1e-30f && most < 1e30f ? kFp8Largest / most : 1.0f;
}

}  // namespace brim::ops
