// SPDX-License-Identifier: Apache-2.0
// From the ops' words to the kernels': element types and dropout.
#pragma once
#include "device/stream.h"
#include "ops/cpu/row_kernels.h"
#include "ops/dropout.h"
#include "tensor/dtype.h"

namespace brim::cpu {

inline Elem elem_of(DType dtype) {
  return dtype == DType::f16 ? Elem::f16 : dtype == DType::bf16 ? Elem::bf16 : Elem::f32;
}

// For rows from `row` on.
inline DropRows drop_rows(const Dropout& d, int64_t row) {
  if (!d.on()) return {};
  return {.seed = d.seed,
          .first_row = static_cast<uint64_t>(d.first_row + row),
          .site = d.site,
          .threshold = dropout_threshold(d.probability),
          .scale = d.scale()};
}

inline const RowKernels& row_kernels_of(const Stream& stream) {
  return row_kernels(static_cast<const CpuStream&>(stream).isa());
}

template <class T>
T* row_of(const TensorView& view, int64_t row) {
  return view ? view.as<T>() + row * view.ld() : nullptr;
}

}  // namespace brim::cpu
