// SPDX-License-Identifier: Apache-2.0
// The CUDA device: opening and its failure reasons, memory, streams, events and graphs. The runtime is linked
// statically and loads the driver dynamically, so the program also starts on machines without either.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <mutex>

#include "base/env.h"
#include "base/log.h"
#include "base/units.h"
#include "device/cuda/launch.cuh"
#include "device/cuda_backend.h"
#include "device/device.h"
#include "device/graph.h"

namespace brim::device {
namespace {

std::atomic<bool> device_lost{false};
constexpr const char* kSmallBatch = "an op of a small batch";

// Device last bound by this thread, to avoid repeated calls.
thread_local int bound_device = -1;
void bind_device(int index) {
  if (bound_device == index) return;
  BRIM_CUDA_CHECK(cudaSetDevice(index));
  bound_device = index;
}

__global__ void probe_kernel(int* out) {
  if (out != nullptr) *out = 1;
}

std::string cuda_version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

std::string reason_without_devices(cudaError_t error) {
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
  if (driver == 0) return "no NVIDIA driver found (libcuda.so.1 is missing)";
  if (error == cudaErrorInsufficientDriver)
    return fmt::format(
        "the NVIDIA driver is too old: it supports CUDA {}, this build needs {}.0; update the driver "
        "or use a build for CUDA {}",
        cuda_version_text(driver), CUDART_VERSION / 1000, std::max(12, driver / 1000));
  if (error == cudaErrorNoDevice)
    return env("CUDA_VISIBLE_DEVICES")
               ? fmt::format("no CUDA device is visible (CUDA_VISIBLE_DEVICES={})", *env("CUDA_VISIBLE_DEVICES"))
               : std::string("the NVIDIA driver reports no CUDA device");
  return fmt::format("the NVIDIA driver failed: {}", cudaGetErrorString(error));
}

int attribute(int index, cudaDeviceAttr what) {
  int value = 0;
  return cudaDeviceGetAttribute(&value, what, index) == cudaSuccess ? value : 0;
}

// Fills `info` or returns the reason for failure. Querying the probe kernel creates the context and detects missing
// code for this architecture.
std::optional<std::string> probe(int index, CudaInfo& info) {
  int count = 0;
  const cudaError_t counted = cudaGetDeviceCount(&count);
  if (counted != cudaSuccess || count == 0) {
    static_cast<void>(cudaGetLastError());
    return reason_without_devices(counted == cudaSuccess ? cudaErrorNoDevice : counted);
  }
  if (index < 0 || index >= count)
    return fmt::format("there {} only {} CUDA device{} (numbered from 0)", count == 1 ? "is" : "are", count,
                       count == 1 ? "" : "s");
  cudaDeviceProp properties{};
  cudaFuncAttributes attributes{};
  cudaError_t error = cudaGetDeviceProperties(&properties, index);
  if (error == cudaSuccess) {
    error = cudaSetDevice(index);
    bound_device = error == cudaSuccess ? index : -1;
  }
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(probe_kernel));
  const int capability = properties.major * 10 + properties.minor;
  if (error != cudaSuccess) static_cast<void>(cudaGetLastError());
  if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction ||
      error == cudaErrorUnsupportedPtxVersion || error == cudaErrorInvalidKernelImage)
    return fmt::format("{} (sm_{}) is not supported by this build (built for {})", properties.name, capability,
                       BRIM_CUDA_ARCHS);
  if (error != cudaSuccess) return fmt::format("{} cannot be used: {}", properties.name, cudaGetErrorString(error));
  info.index = index;
  info.name = properties.name;
  char bus_id[32] = {};
  if (cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, index) == cudaSuccess) info.pci_bus_id = bus_id;
  info.capability = capability;
  info.kernel_arch = attributes.ptxVersion;  // the virtual architecture: __CUDA_ARCH__ / 10 in our kernels
  info.sm_count = properties.multiProcessorCount;
  info.shared_bytes_per_block = attribute(index, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  info.l2_bytes = properties.l2CacheSize;
  info.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  static_cast<void>(cudaDriverGetVersion(&info.driver_version));
  static_cast<void>(cudaRuntimeGetVersion(&info.runtime_version));
  info.bf16 = capability >= 80 && info.kernel_arch >= 80;
  info.tf32 = capability >= 80;
  info.fp8 = capability >= 89;
  return std::nullopt;
}

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(const CudaInfo& info) : Device(DeviceKind::cuda, info.index), info_(info) {}

  const CudaInfo& info() const { return info_; }
  std::string name() const override { return info_.name; }
  std::string pci_bus_id() const override { return info_.pci_bus_id; }
  MemoryInfo memory() const override {
    size_t free = 0, total = 0;
    bind_device(info_.index);
    BRIM_CUDA_CHECK(cudaMemGetInfo(&free, &total));
    return {static_cast<int64_t>(free), static_cast<int64_t>(total)};
  }
  std::unique_ptr<Stream> make_stream() override { return std::make_unique<CudaStream>(info_); }

  int64_t allocated_bytes() const override { return allocated(); }
  // The driver maps pages of 2 MiB; blocks smaller than half a page share one in units of 512 bytes.
  int64_t rounded_bytes(int64_t bytes) const override {
    const int64_t piece = bytes < (1 << 20) ? 512 : 2 << 20;
    return (bytes + piece - 1) / piece * piece;
  }
  DeviceBuffer allocate_host(size_t bytes) override {
    void* data = nullptr;
    bind_device(info_.index);
    check_room(bytes == 0 ? cudaSuccess : cudaHostAlloc(&data, bytes, cudaHostAllocPortable), bytes,
               "page-locked host");
    if (data != nullptr) ++blocks();
    return DeviceBuffer(this, data, bytes, true);
  }
  // The context belongs to the process, so it stays while any buffer on this GPU exists.
  void close() override {
    if (blocks() > 0 || device_lost) return;
    bind_device(info_.index);
    const cudaError_t error = cudaDeviceReset();
    bound_device = -1;
    if (error != cudaSuccess) cuda_warn(error, "closing the device");
  }
  void open() override {
    cuda_refuse_after_loss();
    cudaError_t error = cudaSetDevice(info_.index);
    if (error == cudaSuccess) error = cudaFree(nullptr);  // creates the context
    bound_device = error == cudaSuccess ? info_.index : -1;
    if (error == cudaSuccess) return;
    static_cast<void>(cudaGetLastError());
    fail(ErrorCode::does_not_fit, "{} cannot be reopened: {}", info_.name, cudaGetErrorString(error));
  }

 protected:
  DeviceBuffer allocate(size_t bytes) override {
    void* data = nullptr;
    bind_device(info_.index);
    check_room(bytes == 0 ? cudaSuccess : cudaMalloc(&data, bytes), bytes, "device");
    allocated() += static_cast<int64_t>(bytes);
    if (data != nullptr) ++blocks();
    return DeviceBuffer(this, data, bytes, false);
  }
  void release(void* data, size_t bytes, bool pinned) noexcept override {
    if (!pinned) allocated() -= static_cast<int64_t>(bytes);
    --blocks();
    const cudaError_t error = pinned ? cudaFreeHost(data) : cudaFree(data);
    if (error != cudaSuccess) cuda_warn(error, "releasing memory");
  }

 private:
  void check_room(cudaError_t error, size_t bytes, const char* what) {
    if (error == cudaErrorMemoryAllocation) {
      static_cast<void>(cudaGetLastError());
      const MemoryInfo m = memory();
      fail(ErrorCode::does_not_fit, "{}: cannot allocate {} of {} memory ({} of {} free)", info_.name,
           format_bytes(static_cast<int64_t>(bytes)), what, format_bytes(m.free_bytes), format_bytes(m.total_bytes));
    }
    BRIM_CUDA_CHECK(error);
  }

  CudaInfo info_;
  // Summed over all objects for this GPU, because the driver counts per process.
  using ByCard = std::array<std::atomic<int64_t>, 64>;
  std::atomic<int64_t>& allocated() const {
    static ByCard bytes{};
    return bytes.at(static_cast<size_t>(info_.index));
  }
  std::atomic<int64_t>& blocks() const {  // includes pinned host memory
    static ByCard count{};
    return count.at(static_cast<size_t>(info_.index));
  }
};

class CudaEvent final : public Event {
 public:
  CudaEvent(int index, bool timing) {
    bind_device(index);
    BRIM_CUDA_CHECK(cudaEventCreateWithFlags(event_.out(), timing ? cudaEventDefault : cudaEventDisableTiming));
  }
  void record(Stream& stream) override { BRIM_CUDA_CHECK(cudaEventRecord(event_.get(), as_cuda(stream).handle())); }
  void wait(Stream& stream) override {
    BRIM_CUDA_CHECK(cudaStreamWaitEvent(as_cuda(stream).handle(), event_.get(), 0));
    as_cuda(stream).set_chains(false);
  }
  void synchronize() override { BRIM_CUDA_CHECK(cudaEventSynchronize(event_.get())); }
  bool done() override {
    const cudaError_t state = cudaEventQuery(event_.get());
    if (state == cudaErrorNotReady) return false;
    BRIM_CUDA_CHECK(state);
    return true;
  }
  double ms_since(Event& earlier) override {
    float ms = 0;
    BRIM_CUDA_CHECK(cudaEventElapsedTime(&ms, static_cast<CudaEvent&>(earlier).event_.get(), event_.get()));
    return ms;
  }

 private:
  CudaEventHandle event_;
};

class CudaGraph final : public Graph {
 public:
  explicit CudaGraph(CudaGraphExecHandle exec) : exec_(std::move(exec)) {}
  void launch(Stream& stream) override {
    cuda_op(stream, kSmallBatch, [&](CudaStream& s) { BRIM_CUDA_CHECK(cudaGraphLaunch(exec_.get(), s.handle())); });
  }

 private:
  CudaGraphExecHandle exec_;
};

}  // namespace

std::vector<const void*>& cuda_kernel_registry() {
  static std::vector<const void*> kernels;
  return kernels;
}
bool cuda_sync_every_op() {
  static const bool on = env_flag("BRIM_SYNC");
  return on;
}

bool cuda_kernel_failed(cudaError_t error) {
  switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorIllegalInstruction:
    case cudaErrorHardwareStackError:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorUnknown:
      return true;
    default:
      return false;
  }
}
void cuda_failed(cudaError_t error, const char* call, const char* file, int line) {
  static_cast<void>(cudaGetLastError());
  int device = -1;
  static_cast<void>(cudaGetDevice(&device));
  // A kernel error is reported by a later call. The device recorded the op it had started; the host only knows the op
  // it was launching.
  const bool behind = cuda_kernel_failed(error) && !cuda_sync_every_op();
  const std::string op = behind ? OpTrail::begun() : std::string(cuda_current_op);
  const bool unnamed = behind && (op.empty() || op.find(kSmallBatch) != std::string::npos);
  if (error != cudaErrorInvalidValue && error != cudaErrorInvalidConfiguration) device_lost = true;
  const std::string message = fmt::format("cuda:{}: {}{}{} ({}): {} at {}:{}{}", device, op, op.empty() ? "" : ": ",
                                          cudaGetErrorString(error), cudaGetErrorName(error), call, file, line,
                                          unnamed ? "; set BRIM_SYNC=1 to identify the failed op" : "");
  cuda_current_op = "";
  throw Error(ErrorCode::device_lost, message);
}
void cuda_warn(cudaError_t error, const char* call) noexcept {
  if (error == cudaErrorCudartUnloading || device_lost) return;  // exiting, or already reported
  try {
    log_warning("cuda: {}: {}", call, cudaGetErrorString(error));
  } catch (...) {  // NOLINT: nothing can be said here
  }
}
void cuda_refuse_after_loss() {
  if (device_lost.load(std::memory_order_relaxed))
    fail(ErrorCode::device_lost, "the CUDA device was lost earlier; restart the process");
}

CudaStream::CudaStream(const CudaInfo& info) : Stream(DeviceKind::cuda), info_(info) {
  bind();
  BRIM_CUDA_CHECK(cudaStreamCreateWithFlags(handle_.out(), cudaStreamNonBlocking));
  trail_ = std::make_unique<OpTrail>(handle());
}
void CudaStream::bind() const { bind_device(info_.index); }
void CudaStream::synchronize() { BRIM_CUDA_CHECK(cudaStreamSynchronize(handle())); }
void CudaStream::name_ops(bool on) {
  if (naming_ && !on) trail_->begin(kSmallBatch);
  naming_ = on;
}
void CudaStream::copy(void* dst, const void* src, size_t bytes) {
  if (bytes == 0) return;
  bind();
  BRIM_CUDA_CHECK(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, handle()));
  chains_ = false;
}
void CudaStream::fill_zero(void* dst, size_t bytes) {
  if (bytes == 0) return;
  bind();
  BRIM_CUDA_CHECK(cudaMemsetAsync(dst, 0, bytes, handle()));
  chains_ = false;
}

std::unique_ptr<Event> make_cuda_event(Device& device, bool timing) {
  return std::make_unique<CudaEvent>(device.index(), timing);
}

void load_all_kernels(Device& device) {
  if (device.kind() != DeviceKind::cuda) return;
  bind_device(device.index());
  cudaFuncAttributes attributes{};
  for (const void* kernel : cuda_kernel_registry()) BRIM_CUDA_CHECK(cudaFuncGetAttributes(&attributes, kernel));
  log_debug("{}: loaded {} kernels", device.name(), cuda_kernel_registry().size());
}

const CudaInfo& cuda_info(const Device& device) {
  BRIM_CHECK(device.kind() == DeviceKind::cuda, "{} is not a CUDA device", device.name());
  return static_cast<const CudaDevice&>(device).info();
}

void begin_capture(Stream& stream) {
  BRIM_CHECK(can_capture(stream), "a {} stream cannot capture a graph", device_kind_name(stream.kind()));
  cuda_refuse_after_loss();
  CudaStream& s = as_cuda(stream);
  s.bind();
  BRIM_CUDA_CHECK(cudaStreamBeginCapture(s.handle(), cudaStreamCaptureModeThreadLocal));
  s.set_capturing(true);
}
std::unique_ptr<Graph> end_capture(Stream& stream) {
  CudaStream& s = as_cuda(stream);
  s.set_capturing(false);
  CudaGraphHandle graph;
  CudaGraphExecHandle exec;
  BRIM_CUDA_CHECK(cudaStreamEndCapture(s.handle(), graph.out()));
  const char* call = "cudaGraphInstantiate";
  cudaError_t made = cudaGraphInstantiate(exec.out(), graph.get(), 0);
  if (made == cudaSuccess) {
    call = "cudaGraphUpload";  // so that the first launch does not allocate
    made = cudaGraphUpload(exec.get(), s.handle());
  }
  if (made == cudaErrorMemoryAllocation) {  // another process holds the GPU's memory; this is recoverable
    static_cast<void>(cudaGetLastError());
    fail(ErrorCode::does_not_fit, "cuda:{}: not enough GPU memory for a captured graph", s.device_index());
  }
  if (made != cudaSuccess) cuda_failed(made, call, BRIM_FILE_NAME, __LINE__);
  return std::make_unique<CudaGraph>(std::move(exec));
}
void abort_capture(Stream& stream) noexcept {
  CudaStream& s = as_cuda(stream);
  s.set_capturing(false);
  CudaGraphHandle graph;
  static_cast<void>(cudaStreamEndCapture(s.handle(), graph.out()));
  static_cast<void>(cudaGetLastError());
}

std::optional<std::string> cuda_unavailable_reason(int index) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  CudaInfo info;
  return probe(index, info);
}
std::unique_ptr<Device> open_cuda_device(int index) {
  CudaInfo info;
  if (const auto reason = probe(index, info)) fail(ErrorCode::device_lost, "cuda:{}: {}", index, *reason);
  start_nvtx_ranges();
  return std::make_unique<CudaDevice>(info);
}

}  // namespace brim::device
