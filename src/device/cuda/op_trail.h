// SPDX-License-Identifier: Apache-2.0
// Records on the device which op each stream has started. Kernels run asynchronously: when one fails, the host has
// launched others and cannot tell which one it was. Each stream therefore writes the op's name (its address) to a
// word of host memory before each op, in stream order; the word survives the failure.
#pragma once
#include <cuda_runtime_api.h>

#include <string>

namespace brim::device {

class OpTrail {
 public:
  explicit OpTrail(
      cudaStream_t stream);  // for the bound device; without driver support for such writes, nothing is recorded
  ~OpTrail();
  OpTrail(const OpTrail&) = delete;
  OpTrail& operator=(const OpTrail&) = delete;

  // `op` must be a string literal, valid for the whole process lifetime. The write waits for the previous
  // op, as the op itself would, and takes 0.8 us on an H200 plus 3 us on the host, or 2.7 us in a graph. Ops of small
  // batches and graphs are therefore not named individually (Stream::name_ops).
  void begin(const char* op);

  // Last ops started by all streams: "attention", or "attention or linear" for two streams; empty if unknown.
  static std::string begun();

 private:
  cudaStream_t stream_;
  const char* volatile* word_ = nullptr;
};

}  // namespace brim::device
