// SPDX-License-Identifier: Apache-2.0
// Activations and their derivatives in fp32. GELU is the erf form; x where it is negative and large is kept relative.
#pragma once
#include "ops/cuda/elem.cuh"
#include "ops/op.h"

namespace brim {

template <Activation kActivation>
__device__ __forceinline__ float activated(float x) {
  if constexpr (kActivation == Activation::gelu)
    return 0.5f * x * erfcf(-0.70710678f * x);
  else if constexpr (kActivation == Activation::relu)
    return x < 0.0f ? 0.0f : x;
  else if constexpr (kActivation == Activation::tanh)
    return tanhf(x);
  else
    return x;
}
// d activation / d x, from x for GELU and from the output for relu and tanh.
template <Activation kActivation>
__device__ __forceinline__ float activation_slope(float x) {
  if constexpr (kActivation == Activation::gelu)
    return 0.5f * erfcf(-0.70710678f * x) + x * 0.39894228f * expf(-0.5f * x * x);
  else if constexpr (kActivation == Activation::relu)
    return x > 0.0f ? 1.0f : 0.0f;
  else if constexpr (kActivation == Activation::tanh)
    return 1.0f - x * x;
  else
    return 1.0f;
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
    case Activation::none:
      return f(ActivationTag<Activation::none>{});
  }
}

}  // namespace brim
