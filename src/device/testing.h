// SPDX-License-Identifier: Apache-2.0
// For tests: a card that computes nothing, for code that only asks which device it has.
#pragma once
#include <string>

#include "device/device.h"

namespace brim::device {

// CUDA's first card, whatever NVML calls it. `bus`: its PCI bus id; empty: not told.
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
