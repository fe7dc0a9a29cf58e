// SPDX-License-Identifier: Apache-2.0
#include "device/device.h"

#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace brim {

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
  }
  return *this;
}

#if !defined(BRIM_WITH_CUDA)
std::optional<std::string> cuda_unavailable_reason(int) {
  return "this build of Brim has no CUDA backend (it is built where nvcc is: cmake --preset cuda); --device cpu runs "
         "here";
}
std::unique_ptr<Device> open_cuda_device(int index) {
  fail(ErrorCode::device_lost, "cuda:{}: {}", index, *cuda_unavailable_reason(index));
}
#endif

std::unique_ptr<Device> open_device(const std::string& text, int threads) {
  if (text == "cpu") return open_cpu_device(threads);
  if (text == "auto") {
    const auto reason = cuda_unavailable_reason(0);
    if (!reason) return open_cuda_device(0);
    log_debug("no CUDA device: {}; using the CPU", *reason);
    return open_cpu_device(threads);
  }
  if (text == "cuda") return open_cuda_device(0);
  if (text.rfind("cuda:", 0) == 0 && text.size() > 5 && text.size() < 8 &&
      text.find_first_not_of("0123456789", 5) == std::string::npos)
    return open_cuda_device(std::stoi(text.substr(5)));
  fail(ErrorCode::usage, "--device {}: unknown device; use auto, cpu, cuda or cuda:N", text);
}

}  // namespace brim
