// SPDX-License-Identifier: Apache-2.0
// Error handling and handles for the CUDA runtime. A failed call throws Error(device_lost) naming the call, the source
// location, the device and the current op; after an error that makes the context unusable, all later ops fail
// immediately.
#pragma once
#include <cuda_runtime_api.h>

#include <utility>

#include "base/error.h"

namespace brim::device {

// Op being launched by this thread, for error messages; set by cuda_op (launch.cuh).
inline thread_local const char* cuda_current_op = "";

bool cuda_kernel_failed(cudaError_t error);  // an asynchronous kernel error, reported by a later call
[[noreturn]] void cuda_failed(cudaError_t error, const char* call, const char* file, int line);
void cuda_warn(cudaError_t error, const char* call) noexcept;  // logs only; for destructors
void cuda_refuse_after_loss();                                 // throws if a device has been lost

#define BRIM_CUDA_CHECK(call)                                                        \
  do {                                                                               \
    const cudaError_t brim_cuda_error = (call);                                      \
    if (brim_cuda_error != cudaSuccess) [[unlikely]]                                 \
      ::brim::device::cuda_failed(brim_cuda_error, #call, BRIM_FILE_NAME, __LINE__); \
  } while (0)

// Owns one runtime handle. The destructor logs errors and never throws.
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
  Handle* out() { return &handle_; }  // out parameter for the creating call; only while empty

 private:
  Handle handle_ = nullptr;
};

using CudaStreamHandle = CudaHandle<cudaStream_t, cudaStreamDestroy>;
using CudaEventHandle = CudaHandle<cudaEvent_t, cudaEventDestroy>;
using CudaGraphHandle = CudaHandle<cudaGraph_t, cudaGraphDestroy>;
using CudaGraphExecHandle = CudaHandle<cudaGraphExec_t, cudaGraphExecDestroy>;

}  // namespace brim::device
