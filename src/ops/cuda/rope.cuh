// SPDX-License-Identifier: Apache-2.0
// Rotation angles and rotation of pairs of dims, shared by the rope op and attention so that both give the same bits.
#pragma once
#include "ops/cuda/rows2d.cuh"

namespace brim::ops {

// Cosine and sine at a position.
__device__ __forceinline__ float2 turn_of(int position, float frequency) {
  float sine, cosine;
  sincosf(static_cast<float>(position) * frequency, &sine, &cosine);
  return make_float2(cosine, sine);
}
// (x, y) rotated.
__device__ __forceinline__ float2 turned(float2 v, float cos, float sin) {
  return make_float2(fmaf(v.x, cos, -__fmul_rn(v.y, sin)), fmaf(v.y, cos, __fmul_rn(v.x, sin)));
}

}  // namespace brim::ops
