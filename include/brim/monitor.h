// SPDX-License-Identifier: Apache-2.0
// Readings of the NVIDIA GPUs of this machine, whether or not Brim uses them.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "brim/error.h"

namespace brim {

// Readings that a GPU does not provide are empty.
struct GpuReading {
  int index = 0;
  std::string name, driver;
  bool healthy = true;
  std::string problem;                // if not healthy
  std::optional<double> utilization;  // share of the time with a running kernel, 0 … 1
  std::optional<int64_t> used_bytes, free_bytes, total_bytes;
  std::optional<double> temperature_c, power_w;
};

// Empty without a GPU or its driver.
BRIM_API std::vector<GpuReading> read_gpus();

}  // namespace brim
