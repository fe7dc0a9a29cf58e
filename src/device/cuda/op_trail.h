// SPDX-License-Identifier: Apache-2.0
// Which op each stream has begun, told by the card itself. Kernels run behind the host: when one fails, the host has
// long launched others and cannot say which it was. So a stream writes, in its own order and before each op, the op's
// name (its address) into a word of host memory, which outlives the failure.
#pragma once
#include <cuda_runtime_api.h>

#include <string>

namespace brim::device {

class OpTrail {
 public:
  explicit OpTrail(
      cudaStream_t stream);  // of the device that is bound; where the driver cannot write so, the trail stays empty
  ~OpTrail();
  OpTrail(const OpTrail&) = delete;
  OpTrail& operator=(const OpTrail&) = delete;

  // `op` is a literal: it must live as long as the process. The write waits for the op before it, as the op itself
  // would, and takes 0.8 us on an H200, 3 us of the host; in a graph 2.7 us. So ops of small batches and of graphs are
  // not named one by one (Stream::name_ops).
  void begin(const char* op);

  // The ops last begun by the streams there are: "attention", or "attention or linear" where two streams work; empty:
  // unknown.
  static std::string begun();

 private:
  cudaStream_t stream_;
  const char* volatile* word_ = nullptr;
};

}  // namespace brim::device
