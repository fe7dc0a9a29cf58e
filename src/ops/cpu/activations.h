// SPDX-License-Identifier: Apache-2.0
// Selects the row kernels of an activation and its gradient.
#pragma once
#include <cstring>

#include "ops/cpu/row_kernels.h"
#include "ops/op.h"

namespace brim::ops::cpu {

using ActivationRow = void (*)(const float* x, float* y, int64_t n);
using ActivationGradRow = void (*)(const float* x, const float* d_y, float* d_x, int64_t n);

inline ActivationRow activation_row(const RowKernels& kernels, Activation activation) {
  switch (activation) {
    case Activation::gelu:
      return kernels.gelu;
    case Activation::relu:
      return kernels.relu;
    case Activation::tanh:
      return kernels.tanh;
    case Activation::gelu_tanh:
      return kernels.gelu_tanh;
    case Activation::quick_gelu:
      return kernels.quick_gelu;
    case Activation::silu:
      return kernels.silu;
    case Activation::none:
      break;
  }
  return [](const float* x, float* y, int64_t n) { std::memmove(y, x, static_cast<size_t>(n) * sizeof(float)); };
}

// The kernel reads the activation's input, or its output if slope_reads_output.
inline ActivationGradRow activation_grad_row(const RowKernels& kernels, Activation activation) {
  switch (activation) {
    case Activation::gelu:
      return kernels.gelu_grad;
    case Activation::relu:
      return kernels.relu_grad;
    case Activation::tanh:
      return kernels.tanh_grad;
    case Activation::gelu_tanh:
      return kernels.gelu_tanh_grad;
    case Activation::quick_gelu:
      return kernels.quick_gelu_grad;
    case Activation::silu:
      return kernels.silu_grad;
    case Activation::none:
      break;
  }
  return [](const float*, const float* d_y, float* d_x, int64_t n) {
    std::memmove(d_x, d_y, static_cast<size_t>(n) * sizeof(float));
  };
}

}  // namespace brim::ops::cpu
