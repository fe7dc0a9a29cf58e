// SPDX-License-Identifier: Apache-2.0
// One whole product on a CPU stream: rows are made ready for the kernel (rounded, tiled) once into scratch, then blocks
// of rows x columns are handed to it. With a pool the threads share both steps; alone, the caller does them in turn.
#pragma once
#include "device/stream.h"
#include "ops/gemm/gemm.h"
#include "tensor/tensor_view.h"

namespace brim::ops::gemm {

// y = act(x Bᵀ + bias) + residual, B being [N,K] in the kernel's panels. Threads share outputs, never a sum, so results
// do not depend on their number.
struct Product {
  tensor::TensorView x;            // [T,K], [K,T] where `turned`; f32, or bf16 for kernels that pack rows
  const void* b = nullptr;         // packed_bytes of it
  const float* b_scale = nullptr;  // [N], int8 only
  tensor::TensorView bias;         // [N] f32 or empty
  tensor::TensorView residual;     // [T,N] f32 or empty; may be y
  tensor::TensorView y;            // [T,N] f32 or bf16
  Act act = Act::none;
  bool turned = false;      // for kernels with pack_turned_rows
  void* scratch = nullptr;  // multiply_scratch_bytes
};
constexpr int64_t kRowsABlock = 256;  // handed to a kernel at a time: its packed rows stay in the second-level cache
int64_t multiply_scratch_bytes(const Kernel& kernel, int64_t T, int64_t K, int threads);
void multiply(const device::Stream& stream, const Kernel& kernel, const Product& product);

}  // namespace brim::ops::gemm
