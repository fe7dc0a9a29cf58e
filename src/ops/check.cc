// SPDX-License-Identifier: Apache-2.0
#include "ops/check.h"

namespace brim::ops {

using tensor::DType;
using tensor::TensorView;

void check_view(const char* op, const char* name, const TensorView& view, DType dtype,
                std::initializer_list<int64_t> dims) {
  bool same = view.dtype == dtype && view.rank == static_cast<int>(dims.size());
  int i = 0;
  for (const int64_t d : dims) {
    if (!same) break;
    same = view.dim[i++] == d;
  }
  BRIM_CHECK(same, "{}: {} is {}, must be {}", op, name, view.shape_text(),
             TensorView(nullptr, dtype, dims).shape_text());
  if (view.elements() == 0) return;
  BRIM_CHECK(view.data != nullptr, "{}: {} is {} with a null pointer", op, name, view.shape_text());
  BRIM_CHECK(view.rank == 0 || view.dim[view.rank - 1] == 1 || view.stride[view.rank - 1] == 1,
             "{}: {} has stride {} within a row, must be 1", op, name, view.stride[view.rank - 1]);
}

void check_optional(const char* op, const char* name, const TensorView& view, DType dtype,
                    std::initializer_list<int64_t> dims) {
  if (view) check_view(op, name, view, dtype, dims);
}

void check_activation(const char* op, const char* name, const device::Stream& stream, DType dtype) {
  const bool cuda = target_kind(stream) == device::DeviceKind::cuda;
  const bool fits = dtype == DType::f32 || (cuda && (dtype == DType::f16 || dtype == DType::bf16));
  BRIM_CHECK(fits, "{}: {} is {}, must be {}", op, name, dtype_name(dtype),
             cuda ? "f32, f16 or bf16" : "f32 on the CPU");
}

void check_scratch(const char* op, const TensorView& scratch, int64_t bytes) {
  if (bytes == 0) return;
  const int64_t given = scratch ? scratch.bytes() : 0;
  BRIM_CHECK(given >= bytes, "{}: scratch has {} bytes, needs {}", op, given, bytes);
}

void check_no_fp8_on_cpu(const char* op, const device::Stream& stream, const TensorView& fp8, const TensorView& scale) {
  BRIM_CHECK(target_kind(stream) == device::DeviceKind::cuda || (!fp8 && !scale),
             "{}: fp8 copies are only supported on CUDA", op);
}

}  // namespace brim::ops
