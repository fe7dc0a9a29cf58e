// SPDX-License-Identifier: Apache-2.0
// Test helper: a GPU stand-in that computes nothing, for code that only queries its device.
#pragma once
#include <string>

#include "device/device.h"

namespace brim::device {

// The first CUDA device, independent of NVML. `bus` is its PCI bus id; empty if unknown.
class StandInCard final : public Device {
 public:
  explicit StandInCard(std::string bus = {}) : Device(DeviceKind::cuda, 0), bus_(std::move(bus)) {}
  std::string name() const override { return "card"; }
  std::string pci_bus_id() const override { return bus_; }
  MemoryInfo memory() const override { return {}; }
  std::unique_ptr<Stream> make_stream() override { return nullptr; }
  DeviceBuffer allocate_host(size_t) override { return {}; }

 protected:
  DeviceBuffer allocate(size_t) override { return {}; }
  void release(void*, size_t, bool) noexcept override {}

 private:
  std::string bus_;
};

}  // namespace brim::device
