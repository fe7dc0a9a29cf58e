// SPDX-License-Identifier: Apache-2.0
// Element-wise iteration over [rows, cols] with strided rows: pieces of eight if every view allows 16-byte accesses,
// single elements otherwise. The body receives its position and does its own loads and stores.
#pragma once
#include "ops/cuda/elem.cuh"

namespace brim::ops {

constexpr int kElementThreads = 256;

// True if all rows of the view are aligned for 16-byte accesses of eight-element pieces.
inline bool eight_wide(const tensor::TensorView& v) {
  const int64_t piece = 8 * dtype_bytes(v.dtype), step = std::min<int64_t>(piece, 16);
  return !v || (reinterpret_cast<uintptr_t>(v.data) % step == 0 &&
                (v.rank < 2 || v.rows() < 2 || v.ld() * dtype_bytes(v.dtype) % step == 0));
}

// A contiguous view is one long row.
struct Extent {
  int64_t rows, cols;
};
template <class... Views>
Extent extent_of(const tensor::TensorView& first, const Views&... rest) {
  const bool flat = first.contiguous() && (... && (!rest || rest.contiguous()));
  if (flat || first.rank < 2) return {1, first.elements()};
  return {first.rows(), first.cols()};
}
template <class... Views>
bool all_eight_wide(Extent e, const Views&... views) {
  return e.cols % 8 == 0 && (... && eight_wide(views));
}
inline dim3 element_grid(Extent e, int width) {
  return dim3(device::blocks_for(e.rows * (e.cols / width), kElementThreads));
}
// Row and column of this thread's piece; false past the end.
template <int kWidth>
__device__ __forceinline__ bool piece_at(Extent e, int64_t& row, int64_t& col) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kElementThreads + threadIdx.x, per_row = e.cols / kWidth;
  if (i >= e.rows * per_row) return false;
  // 64-bit division would be a third of the instructions of an element-wise kernel.
  if (e.rows == 1)
    row = 0;
  else if (e.rows * per_row <= INT32_MAX)
    row = static_cast<uint32_t>(i) / static_cast<uint32_t>(per_row);
  else
    row = i / per_row;
  col = (i - row * per_row) * kWidth;
  return true;
}

template <int kWidth, class Elem>
__device__ __forceinline__ void load_piece(const Elem* p, float (&f)[kWidth]) {
  if constexpr (kWidth == 8)
    load8(p, f);
  else
    f[0] = to_f32(*p);
}
template <int kWidth, class Elem>
__device__ __forceinline__ void store_piece(Elem* p, const float (&f)[kWidth]) {
  if constexpr (kWidth == 8)
    store8(p, f);
  else
    *p = from_f32<Elem>(f[0]);
}

}  // namespace brim::ops
