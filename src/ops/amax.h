// SPDX-License-Identifier: Apache-2.0
// Scales for fp8: the factor that fills e4m3's range. `amax` finds the largest magnitude of a tensor and `fp8_scale`
// makes factors of such maxima: of weights, and of everything in a run's first step. Later steps multiply what the
// passes make by factors from the maxima of earlier steps (delayed scaling), because a pass over a tensor only to find
// its maximum would cost what fp8 gains: `fp8_remember` ends a step, `fp8_delayed_scale` begins one.
#pragma once
#include "ops/dropout.h"  // BRIM_HOST_DEVICE
#include "ops/fp8_code.h"
#include "ops/op.h"

namespace brim::ops {

using tensor::TensorView;

struct AmaxArgs {
  TensorView x;     // any shape; f32 on the CPU, an activation type on CUDA
  TensorView amax;  // [1] f32: becomes the larger of what is there and max |x|; infinite when x has a NaN
  template <class F>
  void views(F&& f) const {
    for (const TensorView& v : {x, amax}) f(v);
  }
};
void amax(device::Stream& stream, const AmaxArgs& args);

struct Fp8ScaleArgs {
  TensorView amax;     // [n] f32
  TensorView scale;    // [n] f32: 448 / (amax * margin); 1 where amax is 0 or not finite
  TensorView inverse;  // [n,1] f32: 1 / scale, in rows as far apart as products want their scales; may be empty
  float margin = 1;    // room above the largest value seen
  template <class F>
  void views(F&& f) const {
    for (const TensorView& v : {amax, scale, inverse}) f(v);
  }
};
void fp8_scale(device::Stream& stream, const Fp8ScaleArgs& args);

constexpr int64_t kFp8ScaleBytes = 16;  // cuBLASLt refuses products whose scales do not lie at multiples of it
constexpr int64_t kFp8History = 16;     // steps whose maxima are remembered

// Sites from `first_gradient` on are gradients: they are multiples of `unit` (one over a step's samples), which differs
// from step to step, so their maxima are remembered divided by it.
struct Fp8RememberArgs {
  TensorView amax;     // [n] f32 of this step; becomes 0
  TensorView history;  // [n,kFp8History] f32, newest first; a site whose maximum is not finite keeps its own
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
  // [n] f32: 448 / (the largest remembered * margin). Where nothing is: 1, and for gradients as if their largest were
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

// For both backends. What a site is taken to be at most, before there is a margin.
BRIM_HOST_DEVICE static inline float fp8_expected(float remembered, bool gradient, float unit) {
  if (!gradient) return remembered;
  return remembered > 0 ? remembered * unit : unit;
}
// Smaller than any tensor that means something, and its factor is still a number.
BRIM_HOST_DEVICE static inline float fp8_scale_of(float most) {
  return most > 1e-30f && most < 1e30f ? kFp8Largest / most : 1.0f;
}

}  // namespace brim::ops
