// SPDX-License-Identifier: Apache-2.0
// What a card attains and what driver and libraries hold on it, measured once per card, driver, build and precision in
// a child process of our own, and kept below the cache directory. A process that measured itself would count what it
// had done before.
#pragma once
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plan/device_profile.h"

namespace brim::plan {

struct CardMeasurement {
  double tflops = 0;            // of a large product in that precision; 0: not measured
  double bandwidth = 0;         // bytes/s, copy, read plus written
  double host_bandwidth = 0;    // bytes/s, page-locked host memory to the card
  int64_t context_bytes = 0;    // beyond the process's own allocations
  bool by_free_memory = false;  // NVML was silent: the card's free memory before and after, other processes included
  bool operator==(const CardMeasurement&) const = default;
};

struct CardKey {
  std::string card, driver, build;
  int runtime = 0;
  ops::Precision precision = ops::Precision::fp32;
};
std::filesystem::path measurement_path(const CardKey& key);
std::optional<CardMeasurement> kept_measurement(const CardKey& key);  // nothing for another version or a broken file
void keep_measurement(const CardKey& key, const CardMeasurement& measurement);
void apply_measurement(const CardMeasurement& measurement, ops::Precision precision, DeviceProfile& profile);

// In the child: products, gradients, a graph and copies on matrices of at most a quarter of `limit_bytes`. Afterwards
// the process holds the context that a run would hold.
CardMeasurement measure_card(device::Device& device, ops::Precision precision, int64_t limit_bytes);
// What the child prints, one line, before it waits for the end of its input. `own_bytes`: as NVML counts this process.
std::string measurement_line(const CardMeasurement& rates, int64_t allocated_bytes, std::optional<int64_t> own_bytes);

// In the parent: starts `command`, reads that line and lets the child go. `free_bytes` of the card is asked before and
// while the child holds its context. Nothing, with the reason through log_info, where the child fails or takes longer.
std::optional<CardMeasurement> run_measurement(const std::vector<std::string>& command,
                                               const std::function<int64_t()>& free_bytes, double timeout_s = 120);
// The program that has the child's verb; without one (tests, a library alone) nothing is measured.
void set_measuring_program(const std::filesystem::path& program);
// Said by libbrim.so, with its own file: the program installed beside it measures, and this process may hold memory of
// the card for others (PyTorch), so that nothing follows from what NVML counts for it. Empty: a program, as before.
void set_library(const std::filesystem::path& file);
bool shares_process();

// local_profile, and on a card what was measured before.
DeviceProfile kept_profile(device::Device& device, ops::Precision precision);
// What a plan in `precision` is solved with: the same, measured now if not before.
DeviceProfile measured_profile(device::Device& device, ops::Precision precision, int64_t limit_bytes);
// Whether driver and libraries hold more than a plan counted: said, with what follows from it, and kept for the next
// plan. `held_bytes` as NVML counts this process; negative where it is silent.
bool found_larger_context(device::Device& device, ops::Precision precision, int64_t planned_bytes, int64_t held_bytes,
                          std::string_view then);

}  // namespace brim::plan
