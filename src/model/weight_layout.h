// SPDX-License-Identifier: Apache-2.0
// Layout and conversion of single parameters in a slab, shared by whole models (weights.cc) and adapters
// (adapter_weights.cc).
#pragma once
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>

#include "device/device.h"
#include "model/params.h"
#include "model/stored_param.h"

namespace brim::model {

// Allocates aligned pieces from a slab that may not exist yet (null base: sizes only, fake addresses).
class Cutter {
 public:
  explicit Cutter(void* base);
  tensor::TensorView cut(tensor::DType dtype, std::initializer_list<int64_t> dims);
  ops::LinearWeight cut_matrix(int64_t N, int64_t K, MatrixFormat format, device::DeviceKind target, device::Isa isa);
  int64_t used() const { return used_; }

 private:
  char* base_;
  int64_t used_ = 0;
};

// Per-worker buffer for one matrix, allocated on first use and kept until loading ends. Counted by load_bytes().
class MatrixBuffer {
 public:
  explicit MatrixBuffer(int64_t bytes) : bytes_(bytes) {}
  void* get(int64_t bytes);

 private:
  int64_t bytes_;
  std::unique_ptr<std::byte[]> data_;
};

// Converts rows of a parameter, starting at `first_row`, as many as `w` has; on a CPU they are packed.
void fill_matrix(const StoredParam& s, int64_t first_row, const ops::LinearWeight& w, device::DeviceKind target,
                 MatrixBuffer& buffer);

}  // namespace brim::model
