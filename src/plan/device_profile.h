// SPDX-License-Identifier: Apache-2.0
// Device properties used by the planner: memory, rates and supported precisions. They come from the table of cards,
// from three numbers on the command line, or from a cached measurement on this machine (card_measure.h).
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "device/device.h"
#include "ops/linear.h"

namespace brim::plan {

// A model uses at most four blocks on a GPU, and the driver rounds each up by less than 2 MiB.
constexpr int64_t kRoundingBytes = 8 << 20;

struct DeviceProfile {
  std::string name;  // "h200", "cpu"
  device::DeviceKind kind = device::DeviceKind::cpu;
  device::Isa isa = device::Isa::generic;  // CPU only
  int threads = 1;                         // CPU only
  int compute_capability = 0;              // CUDA only: 90 for sm_90
  int64_t total_bytes = 0;
  double tflops_fp32 = 0, tflops_tf32 = 0, tflops_half = 0, tflops_fp8 = 0,
         tops_int8 = 0;       // reached by a large product; 0 if unsupported
  double bandwidth = 0;       // bytes/s, copy, read plus written
  double host_bandwidth = 0;  // CUDA only: bytes/s in each direction between pinned host memory and the GPU
  int64_t context_bytes = 0;  // held by the process on the device besides the plan's own blocks
  bool bf16 = true;           // tflops_half applies to bf16 too, not only to fp16
  bool measured = false;      // rates were measured; otherwise from data sheets
  bool context_measured = false;
  bool context_by_free_memory = false;  // NVML had no data: may include other processes
  bool runnable = true;                 // this build has kernels for it; otherwise planning only

  int64_t rounding_bytes() const;               // part of the context reserved for the driver's rounding of our blocks
  double rate(ops::Precision precision) const;  // flop/s; 0 if unsupported
  std::string precisions() const;               // "fp32, tf32, bf16"
  const char* mfu_note() const;  // suffix for utilisation based on an unmeasured rate: " of the data sheet"
  bool operator==(const DeviceProfile&) const = default;
};

// Cards by name, smallest first. Rates are 78 % of the data sheet's dense figure (typical for large products), contexts
// are estimates; those of the H200 were measured on one card and may differ on another.
const std::vector<DeviceProfile>& known_cards();
// Looks up a card by a user's spelling ("RTX 4060 Ti 16GB", "a100", "rtx3050-4gb"), or "cpu" for this machine. If there
// are several sizes, takes the smallest and adds a note. Throws usage with the nearest name.
DeviceProfile card_profile(const std::string& name, std::vector<std::string>* notes = nullptr);
// Table entry for a driver's device name, nearest in memory if there are several; null if unknown.
const DeviceProfile* find_card(const std::string& driver_name, int64_t total_bytes);
// A card described by numbers. Rates other than half precision follow the usual proportions; a rate of 0 is taken from
// the known card nearest in memory, with a note.
DeviceProfile custom_card(int64_t total_bytes, double tflops, double bandwidth,
                          std::vector<std::string>* notes = nullptr);
// Rough memory use of a process on a GPU before its first allocation.
int64_t estimated_context_bytes(int compute_capability);

// Profile of an opened device: table values if the name is known, and for a CPU the cached measurement if present.
DeviceProfile local_profile(device::Device& device);
// Rough figures for a CPU with this ISA.
DeviceProfile estimated_cpu(device::Isa isa, int threads, int64_t total_bytes);
// Times large products and copies on the CPU for about half a second and caches the result in profile_path().
DeviceProfile measure_cpu(device::Device& device);
std::filesystem::path profile_path(const std::string& device_name);

std::string to_json(const DeviceProfile& profile);
DeviceProfile profile_from_json(const std::string& json);  // throws bad_data

}  // namespace brim::plan
