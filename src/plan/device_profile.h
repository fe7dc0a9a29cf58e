// SPDX-License-Identifier: Apache-2.0
// What the planner must know of a device: its memory, its roofs, what it can compute. From the table of cards, from
// three numbers on the command line, or measured on this machine and kept on disk (card_measure.h).
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "device/device.h"
#include "ops/linear.h"

namespace brim::plan {

// A model's blocks on a card are at most four, and a driver rounds each up by less than 2 MiB.
constexpr int64_t kRoundingBytes = 8 << 20;

struct DeviceProfile {
  std::string name;  // "h200", "cpu"
  device::DeviceKind kind = device::DeviceKind::cpu;
  device::Isa isa = device::Isa::generic;  // cpu
  int threads = 1;                         // cpu
  int compute_capability = 0;              // cuda: 90 for sm_90
  int64_t total_bytes = 0;
  double tflops_fp32 = 0, tflops_tf32 = 0, tflops_half = 0, tflops_fp8 = 0,
         tops_int8 = 0;       // attained by a large product; 0: not there
  double bandwidth = 0;       // bytes/s, copy, read plus written
  double host_bandwidth = 0;  // cuda: bytes/s each way between page-locked host memory and the card
  int64_t context_bytes = 0;  // what the process holds on the device beside the plan's own blocks
  bool bf16 = true;           // tflops_half counts for bf16 too, not only for fp16
  bool measured = false;      // rates were measured; else they come from data sheets
  bool context_measured = false;
  bool context_by_free_memory = false;  // and NVML was silent: other processes may be in it
  bool runnable = true;                 // this build has kernels for it; else it can only be planned for

  int64_t rounding_bytes() const;  // of the context: what a driver may add to our blocks by rounding them up
  double rate(ops::Precision precision) const;  // flop/s; 0: the device does not compute in it
  std::string precisions() const;               // "fp32, tf32, bf16"
  const char* mfu_note() const;  // after a share of a card's rate that nobody measured: " of the data sheet"
  bool operator==(const DeviceProfile&) const = default;
};

// Cards by name, smallest first. Rates are 78 % of the data sheet's dense figure (what large products attain), contexts
// are estimates; the H200's are what one such card attained and held, another may differ.
const std::vector<DeviceProfile>& known_cards();
// A card of the table as people write it ("RTX 4060 Ti 16GB", "a100", "rtx3050-4gb"), or "cpu": this machine. Of
// several sizes the smallest, and `notes` says so. Throws usage with the nearest name.
DeviceProfile card_profile(const std::string& name, std::vector<std::string>* notes = nullptr);
// The card of the table that a driver's name means, the nearest in memory where there are several; null: none.
const DeviceProfile* find_card(const std::string& driver_name, int64_t total_bytes);
// A card described by hand. Rates other than half precision's are taken in the usual proportions; a rate of 0 is that
// of the known card nearest in memory, and `notes` says so.
DeviceProfile custom_card(int64_t total_bytes, double tflops, double bandwidth,
                          std::vector<std::string>* notes = nullptr);
// What a process holds on a card before its first allocation, roughly.
int64_t estimated_context_bytes(int compute_capability);

// An opened device: the table's figures where the name is known; a CPU's kept measurement where there is one.
DeviceProfile local_profile(device::Device& device);
// What a CPU of that kind does roughly.
DeviceProfile estimated_cpu(device::Isa isa, int threads, int64_t total_bytes);
// Times large products and copies on the CPU for about half a second; keeps the answer under profile_path().
DeviceProfile measure_cpu(device::Device& device);
std::filesystem::path profile_path(const std::string& device_name);

std::string to_json(const DeviceProfile& profile);
DeviceProfile profile_from_json(const std::string& json);  // throws bad_data

}  // namespace brim::plan
