// SPDX-License-Identifier: Apache-2.0
// A complete product on a CPU stream: rows are packed for the kernel (rounded, tiled) once into scratch, then it is
// called for blocks of rows x columns. With a pool the threads share both steps; without one the caller does them in
// turn.
#pragma once
#include "device/stream.h"
#include "ops/gemm/gemm.h"
#include "tensor/tensor_view.h"

namespace brim::ops::gemm {

// y = act(x Bᵀ + bias) + residual, where B is [N,K] in the kernel's panels. Threads share outputs, never a sum, so
// results do not depend on their number.
struct Product {
  tensor::TensorView x;            // [T,K], or [K,T] if `turned`; f32, or bf16 for kernels that pack rows
  const void* b = nullptr;         // packed_bytes
  const float* b_scale = nullptr;  // [N], int8 only
  const float* b_total = nullptr;  // [N], int8 only: rows of x are packed around their centres
  tensor::TensorView bias;         // [N] f32 or empty
  tensor::TensorView residual;     // [T,N] f32 or empty; may be y
  tensor::TensorView y;            // [T,N] f32 or bf16
  Act act = Act::none;
  bool turned = false;      // for kernels with pack_turned_rows
  void* scratch = nullptr;  // multiply_scratch_bytes
};
constexpr int64_t kRowsABlock = 256;  // rows per kernel call: their packed form stays in L2
int64_t multiply_scratch_bytes(const Kernel& kernel, int64_t T, int64_t K, int threads);
void multiply(const device::Stream& stream, const Kernel& kernel, const Product& product);

}  // namespace brim::ops::gemm
