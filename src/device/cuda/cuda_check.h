// SPDX-License-Identifier: Apache-2.0
// Errors and handles of the CUDA runtime. A failed call becomes Error(device_lost) that names the call, the place, the
// device and the op being run; after one that leaves the context unusable every later op refuses to start.
#pragma once
#include <cuda_runtime_api.h>

#include <utility>

#include "base/error.h"

namespace brim::device {

// The op this thread is launching, for messages; set by cuda_op (launch.cuh).
inline thread_local const char* cuda_current_op = "";

bool cuda_kernel_failed(cudaError_t error);  // the error of a kernel that ran, told by a later call
[[noreturn]] void cuda_failed(cudaError_t error, const char* call, const char* file, int line);
void cuda_warn(cudaError_t error, const char* call) noexcept;  // logs; for destructors
void cuda_refuse_after_loss();                                 // throws once a device was lost

#define BRIM_CUDA_CHECK(call)                                                        \
  do {                                                                               \
    const cudaError_t brim_cuda_error = (call);                                      \
    if (brim_cuda_error != cudaSuccess) [[unlikely]]                                 \
      ::brim::device::cuda_failed(brim_cuda_error, #call, BRIM_FILE_NAME, __LINE__); \
  } while (0)

// Owns one runtime handle. The destructor logs what goes wrong and never throws.
template <class Handle, cudaError_t (*Destroy)(Handle)>
class CudaHandle {
 public:
  CudaHandle() = default;
  explicit CudaHandle(Handle handle) : handle_(handle) {}
  ~CudaHandle() {
    if (handle_ == nullptr) return;
    if (const cudaError_t error = Destroy(handle_); error != cudaSuccess) cuda_warn(error, "releasing a handle");
  }
  CudaHandle(CudaHandle&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  CudaHandle& operator=(CudaHandle&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  CudaHandle(const CudaHandle&) = delete;
  CudaHandle& operator=(const CudaHandle&) = delete;

  Handle get() const { return handle_; }
  Handle* out() { return &handle_; }  // for the call that creates it; only while empty

 private:
  Handle handle_ = nullptr;
};

using CudaStreamHandle = CudaHandle<cudaStream_t, cudaStreamDestroy>;
using CudaEventHandle = CudaHandle<cudaEvent_t, cudaEventDestroy>;
using CudaGraphHandle = CudaHandle<cudaGraph_t, cudaGraphDestroy>;
using CudaGraphExecHandle = CudaHandle<cudaGraphExec_t, cudaGraphExecDestroy>;

}  // namespace brim::device
