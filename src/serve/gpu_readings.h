// SPDX-License-Identifier: Apache-2.0
// GPU readings as shown by /health and /metrics, and warnings of the server.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "brim/brim.h"
#include "monitor/nvml.h"
#include "monitor/watch.h"

namespace brim::serve {

// A warning of /health. `kind` identifies it while its text changes; empty: the text itself. Warnings about high GPU
// utilisation or a high share of used memory do not degrade the health status.
struct Warning {
  std::string kind, text;
  bool degrades = true;
};
std::vector<std::string> sentences(const std::vector<Warning>& warnings);

struct GpuReadings {
  std::string health_json = "null";
  std::string metrics_text;
  bool healthy = true, computes = false;  // computes: a model of this server runs on it
  bool lost = false;                      // the driver lost a GPU that holds a model
  bool gone = false;                      // `lost` for some seconds
  std::vector<Warning> warnings;
};

// `on_gpu`: a model runs on a GPU. `held`: memory of this process on the device.
GpuReadings readings_of(const std::vector<monitor::GpuSample>& gpus, const monitor::Watch& watch, bool on_gpu,
                        const MemoryPlan& planned, std::optional<int64_t> held);

// "GPU 0: 45 % utilisation, 5120 of 12288 MiB (41.7 %), 61 °C, 88 W", without the readings that are unavailable.
std::string log_line(const monitor::GpuSample& gpu);

}  // namespace brim::serve
