// SPDX-License-Identifier: Apache-2.0
// What the kernel and the card say of this process while a run goes on, for the run's record.
#pragma once
#include <map>
#include <optional>

#include "device/device.h"
#include "jobs/doctor_trace.h"

namespace brim::jobs {

class RunReadings {
 public:
  void begin(device::Device& device);
  // Fills in the seconds since, processor times, faults, the card's readings, the device and the cores.
  void end(device::Device& device, TracedRun& run);

 private:
  std::optional<CardWatch> card_;
  int64_t since_ns_ = 0, faults_ = 0;
  double process_cpu_ = 0, machine_cpu_ = 0;
  std::map<int, double> delays_;  // of the threads that were there at the start: the loop's and the device's
};

}  // namespace brim::jobs
