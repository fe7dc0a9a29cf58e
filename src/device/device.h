// SPDX-License-Identifier: Apache-2.0
// A device owns memory and makes streams. Three kinds: cpu, cuda, and null, which computes nothing and records what a
// computation would touch (that is how plans are made). No CUDA header is included here.
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

// Bytes on a device, freed with the object. Copying is a named call on a Stream.
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
  bool pinned_ = false;  // page-locked host memory rather than device memory
  friend class memory::Ledger;
  std::shared_ptr<void> charge_;  // what pays for the bytes in a ledger; given back after them
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
  // "0000:65:00.0": which card this is to those who count cards otherwise than CUDA does; empty: none, or not told.
  virtual std::string pci_bus_id() const { return {}; }
  virtual MemoryInfo memory() const = 0;
  virtual std::unique_ptr<Stream> make_stream() = 0;
  virtual DeviceBuffer allocate_host(size_t bytes) = 0;  // staging memory: page-locked where the device can use it
  virtual int64_t allocated_bytes() const { return 0; }  // on the device, by this process; the CPU does not count
  // What a block of `bytes` takes of the device's memory: drivers round up.
  virtual int64_t rounded_bytes(int64_t bytes) const { return bytes; }
  // With no buffer or stream of it left, what it holds besides goes too: a card's context, a CPU's threads. open()
  // brings it back, and throws does_not_fit where that cannot be done now.
  virtual void close() {}
  virtual void open() {}

 protected:
  Device(DeviceKind kind, int index) : kind_(kind), index_(index) {}
  friend class DeviceBuffer;
  friend class memory::Ledger;  // the only caller of allocate (memory/ledger.h)
  // 256-byte aligned. Throws does_not_fit when the device has no room, whatever a ledger says.
  virtual DeviceBuffer allocate(size_t bytes) = 0;
  virtual void release(void* data, size_t bytes, bool pinned) noexcept = 0;

 private:
  std::shared_ptr<memory::Ledger> ledger_;  // made by Ledger::of
  DeviceKind kind_;
  int index_;
};

// `threads` 0 takes all usable cores.
std::unique_ptr<Device> open_cpu_device(int threads);

// Why a CUDA device cannot be used, or nothing if it can. Never throws; says one clear line.
std::optional<std::string> cuda_unavailable_reason(int index);
// Throws device_lost with that reason; usage where this build has no CUDA backend.
std::unique_ptr<Device> open_cuda_device(int index);
// A loaded driver or device files of NVIDIA's, below `root`: a GPU may be expected.
bool nvidia_driver_here(const std::string& root = "");

// Which device to use. auto is CUDA where there is a usable device, else the CPU.
struct DeviceChoice {
  enum class Kind : uint8_t { automatic, cpu, cuda };
  Kind kind = Kind::automatic;
  int index = 0;  // of CUDA's
  bool operator==(const DeviceChoice&) const = default;
};
DeviceChoice read_device(std::string_view text);      // auto, cpu, cuda, cuda:1; throws BadValue
std::string device_text(const DeviceChoice& choice);  // as read_device takes it

// Where auto takes the CPU although a driver is there it says why, once, through log_info. `root` is for tests: where
// device files are looked for.
std::unique_ptr<Device> open_device(const DeviceChoice& choice, int threads, const std::string& root = "");
std::unique_ptr<Device> open_device(std::string_view text, int threads);  // `device` as a caller gave it

}  // namespace brim::device
