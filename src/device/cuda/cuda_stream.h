// SPDX-License-Identifier: Apache-2.0
// The CUDA stream behind brim::Stream, and the GPU properties needed by kernels. Included only by .cu files and by
// files in device/cuda and ops/cuda.
#pragma once
#include <memory>

#include "device/cuda/cuda_check.h"
#include "device/cuda/op_trail.h"
#include "device/cuda_info.h"
#include "device/stream.h"

namespace brim::device {

class CudaStream final : public Stream {
 public:
  explicit CudaStream(const CudaInfo& info);
  cudaStream_t handle() const { return handle_.get(); }
  const CudaInfo& info() const { return info_; }
  int device_index() const { return info_.index; }
  // Binds the stream's device to the calling thread; cheap if already bound.
  void bind() const;
  // Records the name of the next op on the stream; see op_trail.h.
  void begin_op(const char* name) {
    if (!naming_ || capturing_) return;
    trail_->begin(name);
    chains_ = false;
  }
  void name_ops(bool on) override;

  void synchronize() override;
  void copy(void* dst, const void* src, size_t bytes) override;
  void fill_zero(void* dst, size_t bytes) override;

  // Matmuls use the algorithms tuned for this many tokens, regardless of the batch size; 0: those for their own size.
  int64_t algorithm_tokens() const { return algorithm_tokens_; }
  void set_algorithm_tokens(int64_t tokens) { algorithm_tokens_ = tokens; }

  // Half-precision matmuls use our own kernels for any number of rows (ops::spare_gemm_library).
  bool spares_library() const { return spares_library_; }
  void spare_library() { spares_library_ = true; }

  // Whether a kernel launched now may start before the previous one ends (launch_chained): the previous operation must
  // be a kernel too, and must not produce weights.
  bool chains() const { return chains_; }
  void set_chains(bool on) { chains_ = on; }

  bool capturing() const { return capturing_; }
  void set_capturing(bool on) {
    capturing_ = on;
    chains_ = false;
  }

 private:
  const CudaInfo& info_;  // owned by the device
  CudaStreamHandle handle_;
  std::unique_ptr<OpTrail> trail_;
  bool capturing_ = false, naming_ = true, chains_ = false, spares_library_ = false;
  int64_t algorithm_tokens_ = 0;
};

inline CudaStream& as_cuda(Stream& stream) { return static_cast<CudaStream&>(stream); }

}  // namespace brim::device
