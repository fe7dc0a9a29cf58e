// SPDX-License-Identifier: Apache-2.0
// What NVIDIA's management library says about the cards of this machine. The library is opened at run time and each of
// its functions is optional, so one program serves every driver. A reading that a card, a driver or a permission does
// not give is absent, never 0; a card that falls off the bus is `lost`, and keeps its place in the list.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace brim::monitor {

enum class GpuState : uint8_t { ok, lost, no_permission, failed };
const char* gpu_state_name(GpuState state);

struct GpuProcess {
  int64_t pid = 0;
  std::string name;              // empty: not told
  std::optional<int64_t> bytes;  // on this card
};

// Hopper and newer: what the units of the card did since the sample before, as shares.
struct GpmActivity {
  std::optional<double> sm, sm_occupancy, tensor, dram;
};

struct GpuSample {
  int index = 0;
  GpuState state = GpuState::ok;
  std::string why;                           // in words, where the state is not ok
  std::string name, uuid, driver;            // empty: not told
  std::string pci_bus_id;                    // "0000:65:00.0"; empty: not told
  std::optional<double> utilization;         // share of the time some kernel ran, 0 … 1; not MFU
  std::optional<double> memory_utilization;  // share of the time the memory was read or written
  std::optional<int64_t> total_bytes, used_bytes, reserved_bytes, free_bytes;
  std::optional<double> temperature_c, power_w, power_limit_w;
  std::optional<int> sm_clock_mhz, max_sm_clock_mhz, memory_clock_mhz;
  std::optional<std::vector<std::string>> throttle;  // reasons by name; empty: running freely
  std::optional<int> pcie_generation, pcie_width;
  std::optional<double> pcie_rx_bytes_per_s, pcie_tx_bytes_per_s;
  std::optional<int64_t> energy_mj;  // counter since the driver was loaded
  std::optional<std::vector<GpuProcess>> processes;
  std::optional<GpmActivity> gpm;    // from the second sample on
  std::vector<std::string> refused;  // readings that exist but need a permission we lack
};

// What this process holds on the sampled card, everything included; absent where the driver does not tell.
std::optional<int64_t> own_bytes(const GpuSample& card);

// Whether two PCI bus ids, in anyone's spelling, name one card. What is empty or no bus id names none.
bool same_card(const std::string& a, const std::string& b);

enum class NvmlState : uint8_t { ready, no_library, no_driver, no_permission, failed };
const char* nvml_state_name(NvmlState state);

struct GpuSampleOptions {
  bool pcie_throughput = true;  // the driver watches its counter for 20 ms per direction, so a fast poller turns it off
  bool processes = true;
  bool gpm = true;
};

// One user at a time. Opening never throws: no library is a state like any other.
class Nvml {
 public:
  Nvml();                                     // $BRIM_NVML_LIBRARY, else libnvidia-ml.so.1
  explicit Nvml(const std::string& library);  // a path, or a name for the loader
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  NvmlState state() const;
  bool ready() const { return state() == NvmlState::ready; }
  const std::string& why() const;  // a sentence where it is not ready
  int count() const;
  std::vector<GpuSample> sample(const GpuSampleOptions& options = {});
  // The card with this bus id (Device::pci_bus_id). An index of CUDA's will not do: CUDA_VISIBLE_DEVICES and
  // CUDA_DEVICE_ORDER hide and reorder cards for CUDA, and NVML counts them all. Absent: NVML does not show it, or
  // shows several and does not tell which is which.
  std::optional<int> find(const std::string& pci_bus_id) const;
  std::optional<GpuSample> sample_card(const std::string& pci_bus_id, const GpuSampleOptions& options = {});
  std::optional<int64_t> own_bytes(const std::string& pci_bus_id);  // of that card, sampled for nothing else
  // One reading for pollers that want little else; absent where the card has none.
  std::optional<int64_t> energy_mj(int index);
  std::optional<int64_t> used_bytes(int index);

 private:
  struct Library;
  std::unique_ptr<Library> library_;
};

}  // namespace brim::monitor
