// SPDX-License-Identifier: Apache-2.0
#include <cuda.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <vector>

#include "device/cuda/cuda_check.h"
#include "device/cuda/op_trail.h"

namespace brim::device {
namespace {

using WriteValue = CUresult (*)(CUstream, CUdeviceptr, cuuint64_t, unsigned);

// The runtime has loaded the driver by now; linking it directly would prevent startup on machines without one.
WriteValue write_value() {
  static const auto call = [] {
    void* driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    return reinterpret_cast<WriteValue>(driver == nullptr ? nullptr : ::dlsym(driver, "cuStreamWriteValue64_v2"));
  }();
  return call;
}

CUresult write(cudaStream_t stream, void* word, const char* op) {
  return write_value()(stream, reinterpret_cast<CUdeviceptr>(word), reinterpret_cast<cuuint64_t>(op),
                       CU_STREAM_WRITE_VALUE_DEFAULT);
}

std::mutex trails_mutex;
std::vector<const char* volatile*>& trails() {
  static std::vector<const char* volatile*> all;
  return all;
}

}  // namespace

OpTrail::OpTrail(cudaStream_t stream) : stream_(stream) {
  if (write_value() == nullptr) return;
  void* word = nullptr;
  BRIM_CUDA_CHECK(cudaHostAlloc(&word, sizeof *word_, cudaHostAllocMapped | cudaHostAllocPortable));
  *static_cast<const char* volatile*>(word) = nullptr;
  if (write(stream, word, nullptr) != CUDA_SUCCESS) {
    static_cast<void>(cudaFreeHost(word));
    return;
  }
  word_ = static_cast<const char* volatile*>(word);
  const std::lock_guard lock(trails_mutex);
  trails().push_back(word_);
}

OpTrail::~OpTrail() {
  if (word_ == nullptr) return;
  {
    const std::lock_guard lock(trails_mutex);
    std::erase(trails(), word_);
  }
  if (const cudaError_t error = cudaFreeHost(const_cast<const char**>(word_)); error != cudaSuccess)
    cuda_warn(error, "releasing memory");
}

void OpTrail::begin(const char* op) {
  // Driver error codes equal those of the runtime.
  if (word_ != nullptr) BRIM_CUDA_CHECK(static_cast<cudaError_t>(write(stream_, const_cast<const char**>(word_), op)));
}

std::string OpTrail::begun() {
  const std::lock_guard lock(trails_mutex);
  std::vector<std::string> names;
  for (const auto* word : trails())
    if (const char* op = *word; op != nullptr && std::find(names.begin(), names.end(), op) == names.end())
      names.emplace_back(op);
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : " or ") + name;
  return text;
}

}  // namespace brim::device
