// SPDX-License-Identifier: Apache-2.0
// Measured throughput and memory overhead of a GPU, once per GPU, driver, build and precision, cached in the cache
// directory. Runs in a child process, because the current process would count memory it has already allocated.
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
  double tflops = 0;            // large product in that precision; 0 if not measured
  double bandwidth = 0;         // bytes/s, copy, read plus written
  double host_bandwidth = 0;    // bytes/s, pinned host memory to the GPU
  int64_t context_bytes = 0;    // beyond the process's own allocations
  bool by_free_memory = false;  // NVML had no data: difference of the GPU's free memory, which includes other processes
  bool operator==(const CardMeasurement&) const = default;
};

struct CardKey {
  std::string card, driver, build;
  int runtime = 0;
  ops::Precision precision = ops::Precision::fp32;
};
std::filesystem::path measurement_path(const CardKey& key);
std::optional<CardMeasurement> cached_measurement(
    const CardKey& key);  // nullopt for another version or an invalid file
void store_measurement(const CardKey& key, const CardMeasurement& measurement);
void apply_measurement(const CardMeasurement& measurement, ops::Precision precision, DeviceProfile& profile);

// In the child: runs products, gradients, a graph and copies on matrices of at most a quarter of `limit_bytes`.
// Afterwards the process holds the same context as a real run.
CardMeasurement measure_card(device::Device& device, ops::Precision precision, int64_t limit_bytes);
// The line printed by the child before it waits for the end of its input. `own_bytes` is NVML's figure for this
// process.
std::string measurement_line(const CardMeasurement& rates, int64_t allocated_bytes, std::optional<int64_t> own_bytes);

// In the parent: starts `command`, reads that line and ends the child. `free_bytes` is called before the start and
// while the child holds its context. Returns nullopt, with the reason in log_info, if the child fails or times out.
std::optional<CardMeasurement> run_measurement(const std::vector<std::string>& command,
                                               const std::function<int64_t()>& free_bytes, double timeout_s = 120);
// Program that implements the child's subcommand; if not set (tests, library only) nothing is measured.
void set_measuring_program(const std::filesystem::path& program);
// Called by libbrim.so with its own path. The program installed with it does the measuring, and NVML's figure for this
// process is ignored because other libraries (PyTorch) may hold GPU memory in it. An empty path resets to program mode.
void set_library(const std::filesystem::path& file);
bool shares_process();

// local_profile, plus the cached measurement on a GPU.
DeviceProfile cached_profile(device::Device& device, ops::Precision precision);
// Profile for planning in `precision`: like cached_profile, but measures now if there is no cached measurement.
DeviceProfile measured_profile(device::Device& device, ops::Precision precision, int64_t limit_bytes);
// Whether driver and libraries hold more than planned; if so, warns with the consequence in `then` and updates the
// cache for the next plan. `held_bytes` is NVML's figure for this process.
bool found_larger_context(device::Device& device, ops::Precision precision, int64_t planned_bytes,
                          std::optional<int64_t> held_bytes, std::string_view then);

}  // namespace brim::plan
