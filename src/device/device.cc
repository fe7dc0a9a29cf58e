// SPDX-License-Identifier: Apache-2.0
#include "device/device.h"

#include <filesystem>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/settings.h"
#include "device/built_with_cuda.h"
#include "device/cuda_info.h"

namespace brim::device {

const char* device_kind_name(DeviceKind kind) {
  static const char* const names[] = {"cpu", "cuda", "null"};
  return names[static_cast<int>(kind)];
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr) device_->release(data_, bytes_, pinned_);
}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  if (this != &other) {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(pinned_, other.pinned_);
    std::swap(charge_, other.charge_);
  }
  return *this;
}

#if defined(BRIM_WITH_CUDA)
bool built_with_cuda() { return true; }
std::string cuda_compiler_version() { return BRIM_CUDA_VERSION; }
#else
bool built_with_cuda() { return false; }
std::string cuda_compiler_version() { return ""; }
std::optional<std::string> cuda_unavailable_reason(int) {
#if defined(BRIM_WHEEL)
  return "this build has no CUDA backend; install a wheel with CUDA, or run `pip install . -C "
         "cmake.define.BRIM_CUDA=ON` in a checkout on a machine with nvcc";
#else
  return "this build has no CUDA backend; build with ./brim on a machine with nvcc (see README.md)";
#endif
}
std::unique_ptr<Device> open_cuda_device(int index) {
  fail(ErrorCode::usage, Remedy{"set `device=cpu`"}, "`device=cuda:{}`: {}", index, *cuda_unavailable_reason(index));
}
void load_all_kernels(Device&) {}
#endif

bool nvidia_driver_present(const std::string& root) {
  const auto there = [&](const char* path) {
    std::error_code ec;
    return std::filesystem::exists(root + path, ec);
  };
  return there("/dev/nvidiactl") || there("/proc/driver/nvidia/version") ||
         (there("/dev/dxg") && there("/usr/lib/wsl/lib/libcuda.so.1"));  // WSL2; dxg alone may be a GPU of any vendor
}

namespace {

// Logs one line, once, and only if a GPU could be expected.
void log_cpu_fallback(const std::string& reason, const std::string& root) {
  static std::mutex mutex;
  static std::string last_reason;
  const std::lock_guard lock(mutex);
  if (std::exchange(last_reason, root + reason) == root + reason) return;
  if (nvidia_driver_present(root))
    log_info("using the CPU although an NVIDIA driver is present: {}; set `device=cpu` to hide this message", reason);
  else
    log_debug("no CUDA device: {}; using the CPU", reason);
}

}  // namespace

DeviceChoice read_device(std::string_view text) {
  using Kind = DeviceChoice::Kind;
  if (text == "auto") return {};
  if (text == "cpu") return {Kind::cpu};
  if (text == "cuda") return {Kind::cuda};
  const std::string_view number = text.starts_with("cuda:") ? text.substr(5) : "";
  if (number.empty() || number.size() > 2 || number.find_first_not_of("0123456789") != std::string_view::npos)
    throw BadValue{"unknown device; use auto, cpu, cuda or cuda:N"};
  return {Kind::cuda, std::stoi(std::string(number))};
}

std::string device_text(const DeviceChoice& choice) {
  if (choice.kind == DeviceChoice::Kind::automatic) return "auto";
  if (choice.kind == DeviceChoice::Kind::cpu) return "cpu";
  return fmt::format("cuda:{}", choice.index);
}

std::unique_ptr<Device> open_device(const DeviceChoice& choice, int threads, const std::string& root) {
  if (choice.kind == DeviceChoice::Kind::cuda) return open_cuda_device(choice.index);
  if (choice.kind == DeviceChoice::Kind::automatic) {
    const auto reason = cuda_unavailable_reason(0);
    if (!reason) return open_cuda_device(0);
    log_cpu_fallback(*reason, root);
  }
  return open_cpu_device(threads);
}

std::unique_ptr<Device> open_device(std::string_view text, int threads) {
  return open_device(read_setting("device", text, read_device), threads);
}

}  // namespace brim::device
