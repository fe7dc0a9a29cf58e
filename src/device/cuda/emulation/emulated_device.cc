// SPDX-License-Identifier: Apache-2.0
// A CUDA device backed by host memory; its streams run kernels synchronously on the emulator. Linked instead of
// cuda_device.cu in the emulation tests only.
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "device/cuda/launch.cuh"
#include "device/cuda_backend.h"
#include "device/device.h"
#include "device/graph.h"

// The runtime is not linked; these symbols are referenced by headers but never called.
extern "C" {
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }
}

namespace brim::device {
namespace {

class EmulatedDevice final : public Device {
 public:
  EmulatedDevice() : Device(DeviceKind::cuda, 0) {
    info_.name = "emulated";
    info_.capability = info_.kernel_arch = 90;
    info_.sm_count = 4;
    info_.shared_bytes_per_block = 224 << 10;
    info_.bf16 = info_.tf32 = info_.fp8 = true;
  }
  std::string name() const override { return info_.name; }
  MemoryInfo memory() const override { return {int64_t{1} << 34, int64_t{1} << 34}; }
  std::unique_ptr<Stream> make_stream() override { return std::make_unique<CudaStream>(info_); }
  DeviceBuffer allocate_host(size_t bytes) override { return allocate(bytes); }
  const CudaInfo& info() const { return info_; }

 protected:
  DeviceBuffer allocate(size_t bytes) override {
    return DeviceBuffer(this, std::aligned_alloc(256, (bytes + 511) / 256 * 256), bytes, false);
  }
  void release(void* data, size_t, bool) noexcept override { std::free(data); }

 private:
  CudaInfo info_;
};

}  // namespace

std::vector<const void*>& cuda_kernel_registry() {
  static std::vector<const void*> kernels;
  return kernels;
}
bool cuda_sync_every_op() { return false; }
void cuda_failed(cudaError_t, const char* call, const char*, int) {
  fail(ErrorCode::internal, "{} is not emulated", call);
}
void cuda_warn(cudaError_t, const char*) noexcept {}
void cuda_refuse_after_loss() {}

OpTrail::OpTrail(cudaStream_t stream) : stream_(stream) {}
OpTrail::~OpTrail() = default;
void OpTrail::begin(const char*) {}

CudaStream::CudaStream(const CudaInfo& info)
    : Stream(DeviceKind::cuda), info_(info), trail_(std::make_unique<OpTrail>(nullptr)) {}
void CudaStream::bind() const {}
void CudaStream::synchronize() {}
void CudaStream::name_ops(bool) {}
void CudaStream::copy(void* dst, const void* src, size_t bytes) { std::memmove(dst, src, bytes); }
void CudaStream::fill_zero(void* dst, size_t bytes) { std::memset(dst, 0, bytes); }

std::unique_ptr<Event> make_cuda_event(Device&, bool) { fail(ErrorCode::internal, "events are not emulated"); }
const CudaInfo& cuda_info(const Device& device) { return static_cast<const EmulatedDevice&>(device).info(); }
void begin_capture(Stream&) { fail(ErrorCode::internal, "graphs are not emulated"); }
std::unique_ptr<Graph> end_capture(Stream&) { fail(ErrorCode::internal, "graphs are not emulated"); }
void abort_capture(Stream&) noexcept {}
std::optional<std::string> cuda_unavailable_reason(int) { return std::nullopt; }
std::unique_ptr<Device> open_cuda_device(int) { return std::make_unique<EmulatedDevice>(); }
void load_all_kernels(Device&) {}

}  // namespace brim::device
