// SPDX-License-Identifier: Apache-2.0
// Readings of this process from the kernel and the GPU during a run, for the run's record.
#pragma once
#include <map>
#include <optional>

#include "device/device.h"
#include "jobs/doctor_trace.h"

namespace brim::jobs {

class RunReadings {
 public:
  void begin(device::Device& device);
  // Fills in elapsed time, CPU times, page faults, GPU readings, the device and the cores.
  void end(device::Device& device, RunRecord& run);

 private:
  std::optional<CardWatch> card_;
  int64_t since_ns_ = 0, faults_ = 0;
  double process_cpu_ = 0, machine_cpu_ = 0;
  std::map<int, double> delays_;  // threads that existed at the start: the loop's and the device's
};

}  // namespace brim::jobs
