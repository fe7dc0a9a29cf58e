// SPDX-License-Identifier: Apache-2.0
// Scales for fp8: `amax` finds the largest magnitude of a tensor, `fp8_scale` turns such maxima into the factor that
// fills e4m3's range and its inverse. Weights are measured once at load; an activation over the first batches of a
// plan, after which its scale is frozen, so that the same plan gives the same bits. Larger values later saturate at
// 448.
#pragma once
#include "ops/op.h"

namespace brim::ops {

using tensor::TensorView;

constexpr float kFp8Largest = 448;  // of e4m3

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
  TensorView amax;        // [n] f32
  TensorView quantise;    // [n] f32: 448 / (amax * margin); 1 where amax is 0 or not finite
  TensorView dequantise;  // [n] f32: its inverse
  float margin = 1;       // room above the largest value seen
  template <class F>
  void views(F&& f) const {
    for (const TensorView& v : {amax, quantise, dequantise}) f(v);
  }
};
void fp8_scale(device::Stream& stream, const Fp8ScaleArgs& args);

}  // namespace brim::ops
