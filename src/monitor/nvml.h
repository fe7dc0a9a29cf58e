// SPDX-License-Identifier: Apache-2.0
// Reads GPU state from NVIDIA's management library. The library is loaded at run time and each of its functions is
// optional, so one binary works with every driver. A reading that is unsupported or not permitted is absent, never 0; a
// GPU that falls off the bus is `lost` and keeps its index.
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
  std::string name;              // empty if unknown
  std::optional<int64_t> bytes;  // on this GPU
};

// Hopper and newer: activity of the GPU's units since the previous sample, as fractions.
struct GpmActivity {
  std::optional<double> sm, sm_occupancy, tensor, dram;
};

struct GpuSample {
  int index = 0;
  GpuState state = GpuState::ok;
  std::string why;                           // explanation if the state is not ok
  std::string name, uuid, driver;            // empty if unknown
  std::string pci_bus_id;                    // "0000:65:00.0"; empty if unknown
  std::optional<double> utilization;         // fraction of the time a kernel was running, 0 … 1; not MFU
  std::optional<double> memory_utilization;  // fraction of the time memory was read or written
  std::optional<int64_t> total_bytes, used_bytes, reserved_bytes, free_bytes;
  std::optional<double> temperature_c, power_w, power_limit_w;
  std::optional<int> sm_clock_mhz, max_sm_clock_mhz, memory_clock_mhz;
  std::optional<std::vector<std::string>> throttle;  // reasons by name; empty if not throttled
  std::optional<int> pcie_generation, pcie_width;
  std::optional<double> pcie_rx_bytes_per_s, pcie_tx_bytes_per_s;
  std::optional<int64_t> energy_mj;  // counter since the driver was loaded
  std::optional<std::vector<GpuProcess>> processes;
  std::optional<GpmActivity> gpm;    // from the second sample on
  std::vector<std::string> refused;  // supported readings that lack permission
};

// Total memory of this process on the sampled GPU; absent if the driver does not report it.
std::optional<int64_t> own_bytes(const GpuSample& card);

// Whether two PCI bus ids, in any notation, are the same GPU. Empty or invalid ids match nothing.
bool same_card(const std::string& a, const std::string& b);

enum class NvmlState : uint8_t { ready, no_library, no_driver, no_permission, failed };
const char* nvml_state_name(NvmlState state);

struct GpuSampleOptions {
  bool pcie_throughput = true;  // the driver samples for 20 ms per direction, so fast pollers turn it off
  bool processes = true;
  bool gpm = true;
};

// Not thread-safe. The constructor never throws: a missing library is a state.
class Nvml {
 public:
  Nvml();                                     // $BRIM_NVML_LIBRARY, else libnvidia-ml.so.1
  explicit Nvml(const std::string& library);  // a path, or a name for the dynamic loader
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  NvmlState state() const;
  bool ready() const { return state() == NvmlState::ready; }
  const std::string& why() const;  // explanation if not ready
  int count() const;
  std::vector<GpuSample> sample(const GpuSampleOptions& options = {});
  // Index of the GPU with this bus id (Device::pci_bus_id). CUDA indices cannot be used: CUDA_VISIBLE_DEVICES and
  // CUDA_DEVICE_ORDER hide and reorder GPUs for CUDA, while NVML lists all. Absent if NVML does not list it, or lists
  // several without bus ids.
  std::optional<int> find(const std::string& pci_bus_id) const;
  std::optional<GpuSample> sample_card(const std::string& pci_bus_id, const GpuSampleOptions& options = {});
  std::optional<int64_t> own_bytes(const std::string& pci_bus_id);  // samples nothing else on that GPU
  // Single readings for fast pollers; absent if unsupported.
  std::optional<int64_t> energy_mj(int index);
  std::optional<int64_t> used_bytes(int index);

 private:
  struct Library;
  std::unique_ptr<Library> library_;
};

}  // namespace brim::monitor
