// SPDX-License-Identifier: Apache-2.0
// Converts op arguments to kernel arguments: element types and dropout.
#pragma once
#include "device/stream.h"
#include "ops/cpu/row_kernels.h"
#include "ops/dropout.h"
#include "tensor/dtype.h"

namespace brim::ops::cpu {

inline Elem elem_of(tensor::DType dtype) {
  return dtype == tensor::DType::f16 ? Elem::f16 : dtype == tensor::DType::bf16 ? Elem::bf16 : Elem::f32;
}

// For rows starting at `row`.
inline DropRows drop_rows(const Dropout& d, int64_t row) {
  if (!d.on()) return {};
  return {.seed = d.seed,
          .first_row = static_cast<uint64_t>(d.first_row + row),
          .site = d.site,
          .threshold = dropout_threshold(d.probability),
          .scale = d.scale()};
}

inline const RowKernels& row_kernels_of(const device::Stream& stream) {
  return row_kernels(static_cast<const device::CpuStream&>(stream).isa());
}

template <class T>
T* row_of(const tensor::TensorView& view, int64_t row) {
  return view ? view.as<T>() + row * view.ld() : nullptr;
}

}  // namespace brim::ops::cpu
