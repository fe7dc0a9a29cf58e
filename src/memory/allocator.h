// SPDX-License-Identifier: Apache-2.0
// Tensor allocation for model code. During planning, LifetimeRecorder returns fake addresses and records first and last
// use; at run time, PlannedAllocator returns the same tensors, in the same order, at their planned offsets. There is no
// explicit free: a tensor ends at its last recorded use.
#pragma once
#include <initializer_list>
#include <map>
#include <string>
#include <vector>

#include "device/stream.h"
#include "memory/placement.h"
#include "memory/tag.h"
#include "tensor/tensor_view.h"

namespace brim::memory {

class TensorAllocator {
 public:
  virtual ~TensorAllocator() = default;
  virtual tensor::TensorView allocate(Tag tag, tensor::DType dtype, std::initializer_list<int64_t> dims) = 0;
  // Replays allocations from an earlier position(), for code that computes a batch in parts which reuse memory.
  // Recording plans one part of maximum size; the inputs of all parts must extend() to its end.
  virtual size_t position() const { return 0; }
  virtual void rewind(size_t) {}
  // The view is needed until here, even if no op has read it since.
  virtual void extend(const tensor::TensorView&) {}
  // The view is a result read after the recorded code ends, so it lives to the end.
  virtual void keep(const tensor::TensorView& view) = 0;

  tensor::TensorView scratch(int64_t bytes) {
    return bytes > 0 ? allocate(Tag::workspace, tensor::DType::u8, {bytes}) : tensor::TensorView();
  }
};

// Records the tensors of a graph on the null device.
class LifetimeRecorder final : public TensorAllocator, public device::UseSink {
 public:
  tensor::TensorView allocate(Tag tag, tensor::DType dtype, std::initializer_list<int64_t> dims) override;
  void extend(const tensor::TensorView& view) override;
  void keep(const tensor::TensorView& view) override;
  void on_use(const tensor::TensorView& view) override;
  void on_op(const char* op, double flops, double bytes) override;

  // Lifetimes in order of allocation; kept tensors live to the end of the recording.
  std::vector<Lifetime> lifetimes() const;
  struct OpTotal {
    int64_t calls = 0;
    double flops = 0, bytes = 0;
  };
  const std::map<std::string, OpTotal>& ops() const { return ops_; }
  double flops() const { return flops_; }
  double bytes() const { return bytes_; }

 private:
  struct Entry {
    uintptr_t address;
    Lifetime life;
    bool kept;
  };
  Entry* find(const void* address);
  std::vector<Entry> entries_;  // in ascending address order
  uintptr_t next_ = uintptr_t{1} << 44;
  int64_t step_ = 0;
  std::map<std::string, OpTotal> ops_;
  double flops_ = 0, bytes_ = 0;
};

// Replays a placement on real memory. A batch smaller than the planned one allocates smaller tensors at the same
// offsets.
class PlannedAllocator final : public TensorAllocator {
 public:
  PlannedAllocator() = default;
  PlannedAllocator(void* base, const Placement* placement) : base_(static_cast<char*>(base)), placement_(placement) {}
  void restart() { next_ = 0; }
  size_t position() const override { return next_; }
  void rewind(size_t position) override { next_ = position; }
  tensor::TensorView allocate(Tag tag, tensor::DType dtype, std::initializer_list<int64_t> dims) override;
  void keep(const tensor::TensorView&) override {}

 private:
  char* base_ = nullptr;
  const Placement* placement_ = nullptr;
  size_t next_ = 0;
};

}  // namespace brim::memory
