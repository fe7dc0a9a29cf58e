// SPDX-License-Identifier: Apache-2.0
#include "tensor/tensor_view.h"

namespace brim::tensor {

TensorView::TensorView(void* where, DType type, std::initializer_list<int64_t> dims) : data(where), dtype(type) {
  BRIM_CHECK(dims.size() <= kMaxRank, "rank {} exceeds {}", dims.size(), kMaxRank);
  for (const int64_t d : dims) dim[rank++] = d;
  int64_t step = 1;
  for (int i = rank - 1; i >= 0; --i) {
    stride[i] = step;
    step *= dim[i];
  }
}

int64_t TensorView::elements() const {
  if (rank == 0) return 0;
  int64_t n = 1;
  for (int i = 0; i < rank; ++i) n *= dim[i];
  return n;
}

bool TensorView::contiguous() const {
  int64_t step = 1;
  for (int i = rank - 1; i >= 0; --i) {
    if (dim[i] > 1 && stride[i] != step) return false;
    step *= dim[i];
  }
  return true;
}

TensorView TensorView::slice_rows(int64_t begin, int64_t end) const {
  BRIM_CHECK(rank > 0 && 0 <= begin && begin <= end && end <= dim[0], "rows {}..{} out of range for {}", begin, end,
             shape_text());
  TensorView v = *this;
  v.dim[0] = end - begin;
  if (data != nullptr) v.data = static_cast<char*>(data) + begin * stride[0] * dtype_bytes(dtype);
  return v;
}

TensorView TensorView::slice_cols(int64_t begin, int64_t end) const {
  BRIM_CHECK(rank > 0 && 0 <= begin && begin <= end && end <= dim[rank - 1], "columns {}..{} out of range for {}",
             begin, end, shape_text());
  TensorView v = *this;
  v.dim[rank - 1] = end - begin;
  if (data != nullptr) v.data = static_cast<char*>(data) + begin * dtype_bytes(dtype);
  return v;
}

TensorView TensorView::reshape(std::initializer_list<int64_t> dims) const {
  BRIM_CHECK(contiguous(), "cannot reshape {}: not contiguous", shape_text());
  TensorView v(data, dtype, dims);
  BRIM_CHECK(v.elements() == elements(), "cannot reshape {} to {}", shape_text(), v.shape_text());
  return v;
}

std::string TensorView::shape_text() const {
  std::string text = std::string(dtype_name(dtype)) + "[";
  for (int i = 0; i < rank; ++i) text += (i > 0 ? "," : "") + std::to_string(dim[i]);
  return text + "]";
}

}  // namespace brim::tensor
