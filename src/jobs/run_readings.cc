// SPDX-License-Identifier: Apache-2.0
#include "jobs/run_readings.h"

#include <unistd.h>

#include <algorithm>

#include "base/clock.h"
#include "base/thread_pool.h"

namespace brim::jobs {

using engine::CpuClock;

void RunReadings::begin(device::Device& device) {
  if (device.kind() == device::DeviceKind::cuda) card_.emplace(device.pci_bus_id());
  process_cpu_ = CpuClock::process_seconds();
  machine_cpu_ = CpuClock::machine_seconds();
  faults_ = CpuClock::major_faults();
  delays_ = CpuClock::task_run_delays();
  since_ns_ = now_ns();
}

void RunReadings::end(device::Device& device, RunRecord& run) {
  engine::PipelineStats& stats = run.stats;
  stats.seconds = seconds_since(since_ns_);
  stats.cpu_seconds = CpuClock::process_seconds() - process_cpu_;
  if (machine_cpu_ >= 0)
    stats.other_cpu_seconds = std::max(0.0, CpuClock::machine_seconds() - machine_cpu_ - stats.cpu_seconds);
  stats.major_faults = CpuClock::major_faults() - faults_;
  if (!delays_.empty()) {
    double delayed = 0;
    for (const auto& [task, delay] : CpuClock::task_run_delays())
      if (const auto before = delays_.find(task); before != delays_.end()) delayed += delay - before->second;
    stats.run_delay_seconds = delayed;
  }
  if (card_) run.card = card_->stop();
  run.set_device(device);
  run.cores = hardware_threads();
  run.machine_cores = std::max(run.cores, static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)));
}

}  // namespace brim::jobs
