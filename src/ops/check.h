// SPDX-License-Identifier: Apache-2.0
// Checks of shape and type that every op's front end makes before it dispatches. A message names the op and the view
// and states both what came and what was wanted.
#pragma once
#include <initializer_list>

#include "device/stream.h"
#include "tensor/tensor_view.h"

namespace brim {

// Type, rank, every dimension, and that neighbours within a row are adjacent (rows themselves may be strided).
void check_view(const char* op, const char* name, const TensorView& view, DType dtype, std::initializer_list<int64_t> dims);
// The same where the view may be empty.
void check_optional(const char* op, const char* name, const TensorView& view, DType dtype, std::initializer_list<int64_t> dims);
// Element types activations may have: f32 on the CPU; f32, f16 or bf16 on CUDA.
void check_activation(const char* op, const char* name, const Stream& stream, DType dtype);
// At least `bytes` of u8 scratch; none needed is always satisfied.
void check_scratch(const char* op, const TensorView& scratch, int64_t bytes);
// fp8 copies and scales exist on CUDA only.
void check_no_fp8_on_cpu(const char* op, const Stream& stream, const TensorView& fp8, const TensorView& scale);

}  // namespace brim
