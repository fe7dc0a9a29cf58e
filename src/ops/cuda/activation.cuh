// SPDX-License-Identifier: Apache-2.0
// Activations and their derivatives in fp32. GELU uses the erf form and keeps its relative accuracy for large negative
// x.
#pragma once
#include "ops/cuda/elem.cuh"
#include "ops/op.h"

namespace brim::ops {

// Activations x σ(z(x)): z, and x z'(x) for their slope.
template <Activation kActivation>
__device__ __forceinline__ float gate(float x) {
  if constexpr (kActivation == Activation::gelu_tanh)
    return x * fmaf(0.0713548163f, x * x, 1.5957691216f);
  else
    return kActivation == Activation::quick_gelu ? 1.702f * x : x;
}
template <Activation kActivation>
__device__ __forceinline__ float gate_slope(float x) {
  if constexpr (kActivation == Activation::gelu_tanh) {
    const float c = x > 1e6f ? 1e6f : x < -1e6f ? -1e6f : x;  // infinity times a slope of 0 would be NaN
    return c * fmaf(3 * 0.0713548163f, c * c, 1.5957691216f);
  } else {
    return gate<kActivation>(x);
  }
}
template <Activation kActivation>
constexpr bool kGated =
    kActivation == Activation::gelu_tanh || kActivation == Activation::quick_gelu || kActivation == Activation::silu;

// Φ(x) and exp(-x²/2) for results rounded to 16 bits: erfc(z) = exp(-z²) times a polynomial in 1 / (1 + p z), fitted to
// a relative error below 4e-7, with a third of the instructions of erfcf. The tail keeps its relative accuracy.
struct NormalParts {
  float upper, bell;
};
__device__ __forceinline__ NormalParts normal_parts(float x) {
  const float bell = exp2_fast(-0.72134752f * x * x), t = reciprocal_fast(fmaf(0.231641888f, fabsf(x), 1.0f));
  float tail = fmaf(-0.0684274970f, t, 0.239199007f);
  tail = fmaf(tail, t, -0.186682702f);
  tail = fmaf(tail, t, 0.211070312f);
  tail = fmaf(tail, t, 0.0213141708f);
  tail = fmaf(tail, t, 0.100201293f);
  tail = fmaf(tail, t, 0.0908316840f);
  tail = fmaf(tail, t, 0.0924938590f) * t * bell;
  return {x > 0.0f ? 1.0f - tail : tail, bell};
}

// The required accuracy of GELU depends on Elem, the type it is rounded to afterwards.
template <Activation kActivation, class Elem = float>
__device__ __forceinline__ float activated(float x) {
  if constexpr (kActivation == Activation::gelu && sizeof(Elem) == 2)
    return x * normal_parts(x).upper;
  else if constexpr (kActivation == Activation::gelu)
    return 0.5f * x * erfcf(-0.70710678f * x);
  else if constexpr (kActivation == Activation::relu)
    return x < 0.0f ? 0.0f : x;
  else if constexpr (kActivation == Activation::tanh)
    return tanhf(x);
  else if constexpr (kGated<kActivation>)
    return x / (1.0f + expf(-gate<kActivation>(x)));
  else
    return x;
}
// For an activation chosen at run time: uniform across threads, so the branches are cheap.
template <class Elem = float>
__device__ __forceinline__ float activated_as(Activation activation, float x) {
  if (activation == Activation::gelu) return activated<Activation::gelu, Elem>(x);
  if (activation == Activation::relu) return activated<Activation::relu>(x);
  if (activation == Activation::tanh) return activated<Activation::tanh>(x);
  if (activation == Activation::gelu_tanh) return activated<Activation::gelu_tanh>(x);
  if (activation == Activation::quick_gelu) return activated<Activation::quick_gelu>(x);
  if (activation == Activation::silu) return activated<Activation::silu>(x);
  return x;
}
// d activation / d x, from x or from the output (slope_reads_output).
template <Activation kActivation, class Elem = float>
__device__ __forceinline__ float activation_slope(float x) {
  if constexpr (kActivation == Activation::gelu && sizeof(Elem) == 2) {
    const NormalParts n = normal_parts(x);
    return fmaf(0.39894228f * x, n.bell, n.upper);
  } else if constexpr (kActivation == Activation::gelu)
    return 0.5f * erfcf(-0.70710678f * x) + x * 0.39894228f * expf(-0.5f * x * x);
  else if constexpr (kActivation == Activation::relu)
    return x > 0.0f ? 1.0f : 0.0f;
  else if constexpr (kActivation == Activation::tanh)
    return 1.0f - x * x;
  else if constexpr (kGated<kActivation>) {
    const float z = gate<kActivation>(x), e = expf(-fabsf(z)), r = 1.0f / (1.0f + e);
    return fmaf(gate_slope<kActivation>(x), e * r * r, z < 0.0f ? e * r : r);
  } else
    return 1.0f;
}

// Both at once, always from x; for GELU they share all but one product each.
struct ActivatedWithSlope {
  float value, slope;
};
template <Activation kActivation, class Elem = float>
__device__ __forceinline__ ActivatedWithSlope activated_with_slope(float x) {
  if constexpr (kActivation == Activation::gelu && sizeof(Elem) == 2) {
    const NormalParts n = normal_parts(x);
    return {x * n.upper, fmaf(0.39894228f * x, n.bell, n.upper)};
  } else {
    const float y = activated<kActivation, Elem>(x);
    return {y, activation_slope<kActivation, Elem>(slope_reads_output(kActivation) ? y : x)};
  }
}

template <Activation kActivation>
struct ActivationTag {
  static constexpr Activation value = kActivation;
};
template <class F>
void dispatch_activation(Activation activation, F&& f) {
  switch (activation) {
    case Activation::gelu:
      return f(ActivationTag<Activation::gelu>{});
    case Activation::relu:
      return f(ActivationTag<Activation::relu>{});
    case Activation::tanh:
      return f(ActivationTag<Activation::tanh>{});
    case Activation::gelu_tanh:
      return f(ActivationTag<Activation::gelu_tanh>{});
    case Activation::quick_gelu:
      return f(ActivationTag<Activation::quick_gelu>{});
    case Activation::silu:
      return f(ActivationTag<Activation::silu>{});
    case Activation::none:
      return f(ActivationTag<Activation::none>{});
  }
}

}  // namespace brim::ops
