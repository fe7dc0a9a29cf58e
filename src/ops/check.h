// SPDX-License-Identifier: Apache-2.0
// Shape and type checks made by the front end of every op before dispatch. Messages name the op and the view and state
// the actual and expected values.
#pragma once
#include <initializer_list>

#include "base/error.h"
#include "device/stream.h"
#include "tensor/tensor_view.h"

namespace brim::ops {

using tensor::DType;
using tensor::TensorView;

// Checks type, rank, every dimension, and that elements within a row are contiguous (rows may be strided).
void check_view(const char* op, const char* name, const TensorView& view, DType dtype,
                std::initializer_list<int64_t> dims);
// Like check_view, but the view may be empty.
void check_optional(const char* op, const char* name, const TensorView& view, DType dtype,
                    std::initializer_list<int64_t> dims);
// Element types of activations: f32 on the CPU; f32, f16 or bf16 on CUDA.
void check_activation(const char* op, const char* name, const device::Stream& stream, DType dtype);
// At least `bytes` of u8 scratch; always satisfied if none is needed.
void check_scratch(const char* op, const TensorView& scratch, int64_t bytes);
// fp8 copies and scales exist on CUDA only.
void check_no_fp8_on_cpu(const char* op, const device::Stream& stream, const TensorView& fp8, const TensorView& scale);

// Common checks of ops that end in a layer norm: gains, result, statistics kept for the gradient, fp8 copy.
template <class Args>
void check_norm(const char* op, const device::Stream& stream, const Args& a, DType type, DType gain, int64_t T,
                int64_t H) {
  check_view(op, "gamma", a.gamma, gain, {H});
  check_optional(op, "beta", a.beta, gain, {H});
  check_view(op, "y", a.y, type, {T, H});
  check_optional(op, "sum", a.sum, type, {T, H});
  check_optional(op, "mean", a.mean, DType::f32, {T});
  check_optional(op, "rstd", a.rstd, DType::f32, {T});
  const bool codes = a.y_fp8 && a.y_fp8.dtype == DType::i8;
  check_optional(op, "y_fp8", a.y_fp8, codes ? DType::i8 : DType::f8e4m3, {T, H});
  if (codes) check_view(op, "fp8_scale", a.fp8_scale, DType::f32, {T});
  BRIM_CHECK(!codes || !(a.sum || a.mean || a.rstd || a.dropout.on()), "{}: int8 codes are not supported in training",
             op);
  check_no_fp8_on_cpu(op, stream, a.y_fp8, a.fp8_scale);
  BRIM_CHECK(a.eps > 0, "{}: eps is {}, must be above 0", op, a.eps);
}

}  // namespace brim::ops
