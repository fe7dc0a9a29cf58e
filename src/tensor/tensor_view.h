// SPDX-License-Identifier: Apache-2.0
// TensorView: pointer, shape, strides and type of a tensor. It owns nothing and is cheap to copy.
#pragma once
#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "base/error.h"
#include "tensor/dtype.h"

namespace brim::tensor {

constexpr int kMaxRank = 4;

struct TensorView {
  void* data = nullptr;
  DType dtype = DType::f32;
  int rank = 0;
  std::array<int64_t, kMaxRank> dim{};
  std::array<int64_t, kMaxRank> stride{};  // in elements; the last is 1 in all tensors created by Brim

  TensorView() = default;
  TensorView(void* data, DType dtype, std::initializer_list<int64_t> dims);

  explicit operator bool() const { return data != nullptr; }
  int64_t rows() const { return rank == 0 ? 0 : dim[0]; }
  int64_t cols() const { return rank < 2 ? 1 : dim[rank - 1]; }
  int64_t ld() const { return stride[0]; }  // row stride in elements
  int64_t elements() const;
  int64_t bytes() const { return elements() * dtype_bytes(dtype); }  // contiguous views only
  bool contiguous() const;

  template <class T>
  T* as() const {
    BRIM_CHECK(data == nullptr || DTypeOf<T>::value == dtype, "{} view read as {}", dtype_name(dtype),
               dtype_name(DTypeOf<T>::value));
    return static_cast<T*>(data);
  }

  TensorView slice_rows(int64_t begin, int64_t end) const;        // [begin, end) of the first dimension
  TensorView slice_cols(int64_t begin, int64_t end) const;        // [begin, end) of the last; keeps the row stride
  TensorView reshape(std::initializer_list<int64_t> dims) const;  // contiguous only
  std::string shape_text() const;                                 // "f32[128,768]"
};

}  // namespace brim::tensor
