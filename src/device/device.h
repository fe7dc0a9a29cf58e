// SPDX-License-Identifier: Apache-2.0
// A device owns memory and creates streams. Three kinds: cpu, cuda, and null, which computes nothing and records the
// tensors a computation would use (for planning). Includes no CUDA headers.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "device/stream.h"

namespace brim::memory {
class Ledger;
}  // namespace brim::memory

namespace brim::device {

class Device;

// A device allocation, freed with the object. Copies are explicit calls on a Stream.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(Device* device, void* data, size_t bytes, bool pinned)
      : device_(device), data_(data), bytes_(bytes), pinned_(pinned) {}
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  Device* device_ = nullptr;
  void* data_ = nullptr;
  size_t bytes_ = 0;
  bool pinned_ = false;  // pinned host memory instead of device memory
  friend class memory::Ledger;
  std::shared_ptr<void> charge_;  // ledger reservation, released after the memory
};

struct MemoryInfo {
  int64_t free_bytes = 0, total_bytes = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  DeviceKind kind() const { return kind_; }
  int index() const { return index_; }
  virtual std::string name() const = 0;  // "NVIDIA H200", "cpu (avx512-amx, 2 threads)"
  // PCI bus id ("0000:65:00.0"), for APIs that number GPUs differently from CUDA; empty if not a GPU or unknown.
  virtual std::string pci_bus_id() const { return {}; }
  virtual MemoryInfo memory() const = 0;
  virtual std::unique_ptr<Stream> make_stream() = 0;
  virtual DeviceBuffer allocate_host(size_t bytes) = 0;  // staging memory: pinned if the device supports it
  virtual int64_t allocated_bytes() const { return 0; }  // device memory of this process; not counted on the CPU
  // Device memory used by a block of `bytes`, including the driver's rounding.
  virtual int64_t rounded_bytes(int64_t bytes) const { return bytes; }
  // If no buffer or stream is left, close() releases the remaining resources: a GPU context or CPU threads. open()
  // restores them and throws does_not_fit if that is not possible now.
  virtual void close() {}
  virtual void open() {}

 protected:
  Device(DeviceKind kind, int index) : kind_(kind), index_(index) {}
  friend class DeviceBuffer;
  friend class memory::Ledger;  // the only caller of allocate (memory/ledger.h)
  // 256-byte aligned. Throws does_not_fit if the device is out of memory, regardless of the ledger.
  virtual DeviceBuffer allocate(size_t bytes) = 0;
  virtual void release(void* data, size_t bytes, bool pinned) noexcept = 0;

 private:
  std::shared_ptr<memory::Ledger> ledger_;  // created by Ledger::of
  DeviceKind kind_;
  int index_;
};

// `threads` 0 uses all available cores.
std::unique_ptr<Device> open_cpu_device(int threads);

// Reason (one line) why a CUDA device cannot be used, or nullopt if it can. Never throws.
std::optional<std::string> cuda_unavailable_reason(int index);
// Throws device_lost with that reason, or usage if this build has no CUDA backend.
std::unique_ptr<Device> open_cuda_device(int index);
// Whether an NVIDIA driver or its device files exist below `root`, so that a GPU may be expected.
bool nvidia_driver_present(const std::string& root = "");

// Selected device. auto is CUDA if a device is usable, else the CPU.
struct DeviceChoice {
  enum class Kind : uint8_t { automatic, cpu, cuda };
  Kind kind = Kind::automatic;
  int index = 0;  // CUDA device index
  bool operator==(const DeviceChoice&) const = default;
};
DeviceChoice read_device(std::string_view text);      // parses auto, cpu, cuda, cuda:1; throws BadValue
std::string device_text(const DeviceChoice& choice);  // inverse of read_device

// If auto falls back to the CPU although a driver is present, logs the reason once through log_info. `root` replaces
// the root of device files in tests.
std::unique_ptr<Device> open_device(const DeviceChoice& choice, int threads, const std::string& root = "");
std::unique_ptr<Device> open_device(std::string_view text, int threads);  // parses `text` first

}  // namespace brim::device
