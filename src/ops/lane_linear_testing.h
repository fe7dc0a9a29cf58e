// SPDX-License-Identifier: Apache-2.0
// Random [G,rows,cols] tensors for lane tests, with a gap after every lane.
#pragma once
#include "ops/testing.h"

namespace brim::ops::testing {

struct LaneTensor {
  HostTensor memory;  // [G, rows * cols]
  int64_t height, width;
  LaneTensor(int64_t G, int64_t rows, int64_t cols, uint64_t seed, int64_t gap = 0,
             tensor::DType type = tensor::DType::f32)
      : memory(random_tensor(type, {G, rows * cols}, seed, 1, 0, gap)), height(rows), width(cols) {}
  tensor::TensorView like(const tensor::TensorView& flat) const {  // view of this memory or of its device copy
    tensor::TensorView v(flat.data, flat.dtype, {flat.dim[0], height, width});
    v.stride[0] = flat.stride[0];
    return v;
  }
  tensor::TensorView view() const { return like(memory.view()); }
  operator tensor::TensorView() const { return view(); }            // NOLINT: implicit on purpose
  const tensor::TensorView& rows() const { return memory.view(); }  // [G, cols] if rows is 1
  float* lane(int64_t g) const { return memory.as<float>() + g * memory.view().ld(); }
  double at(int64_t g, int64_t r, int64_t c) const { return memory.at(g, r * width + c); }
};

}  // namespace brim::ops::testing
