// SPDX-License-Identifier: Apache-2.0
#include "engine/run_stats.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/thread_pool.h"
#include "monitor/host.h"
#include "monitor/nvml.h"
#include "plan/card_measure.h"

namespace brim::engine {
namespace {

double clock_seconds(clockid_t clock) {
  timespec t{};
  ::clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

std::string compute(const plan::Plan& plan) {
  if (plan.device.kind != device::DeviceKind::cpu) return "compute (GPU busy)";
  const int threads = plan.device.threads, cores = hardware_threads();
  if (threads < cores) return fmt::format("compute with {} of {} cores (`threads`)", threads, cores);
  return cores == 1 ? "compute (core busy)" : "compute (all cores busy)";
}

// A run below 90 % device utilisation waited for another stage; the stage that was busy all the time is the bottleneck.
std::string bottleneck_of(const plan::Plan& plan, const PipelineStats& s, double busy) {
  const double seconds = std::max(1e-9, s.seconds);
  const bool cpu = plan.device.kind == device::DeviceKind::cpu;
  if (cpu && s.other_cpu_seconds.value_or(0) > 0.25 * seconds * plan.device.threads)
    return "other processes on the CPU";
  const double filled = s.batches > 0 ? static_cast<double>(s.tokens) / static_cast<double>(s.batches) : 0;
  if (busy >= 0.9) {
    if (s.batches > 8 && plan.token_budget < (cpu ? 512 : 8192) &&
        filled > 0.5 * static_cast<double>(plan.token_budget))
      return "small batches (memory limit)";
    return compute(plan);
  }
  struct Stage {
    const char* name;
    double share;
  };
  const Stage stages[] = {{"reading the input", s.read_seconds / seconds},
                          {"tokenizing", s.tokenizers > 0 ? s.tokenize_seconds / s.tokenizers / seconds : 0},
                          {"packing and collecting", s.host_seconds / seconds},
                          {"writing the output", s.sink_seconds / seconds}};
  const Stage* most = std::max_element(std::begin(stages), std::end(stages),
                                       [](const Stage& a, const Stage& b) { return a.share < b.share; });
  if (most->share > std::max(0.5, busy)) return most->name;
  if (s.batches <= 8) return "startup (short run)";
  return busy > most->share ? compute(plan) : most->name;
}

}  // namespace

std::map<int, double> CpuClock::task_run_delays() {
  std::map<int, double> delays;
  std::error_code ec;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", ec)) {
    std::ifstream file(task.path() / "schedstat");
    double running = 0, waiting = 0;
    if (file >> running >> waiting) delays[std::atoi(task.path().filename().c_str())] = waiting * 1e-9;
  }
  return delays;
}

monitor::RunRecord record_of(const model::ModelShape* shape, const plan::Plan* plan, const PipelineStats& s) {
  monitor::RunRecord r;
  const double seconds = std::max(1e-9, s.seconds);
  r.stats = s;
  if (plan == nullptr) {
    r.device_busy = s.tokenizers > 0 ? std::min(1.0, s.tokenize_seconds / s.tokenizers / seconds) : 0;
    r.held_back_by = s.sink_seconds > 0.8 * seconds                          ? "writing the output"
                     : s.read_seconds > 0.8 * seconds && r.device_busy < 0.8 ? "reading the input"
                                                                             : "VADER's rules";
    return r;
  }
  r.planned_bytes = plan->peak_bytes + s.repeated_bytes;
  r.limit_bytes = plan->limit_bytes;
  r.token_budget = plan->token_budget;
  r.max_length = plan->max_length;
  r.staging_depth = plan->staging_depth;
  r.device_busy = std::min(1.0, s.compute_seconds / seconds);
  const double rate = plan->device.rate(plan->precision);
  if (rate > 0) r.mfu = forward_flops(*shape, static_cast<double>(s.tokens), s.sum_squares) / seconds / rate;
  r.mfu_of_data_sheet = *plan->device.mfu_note() != 0;
  r.held_back_by = bottleneck_of(*plan, s, *r.device_busy);
  return r;
}

std::optional<int64_t> held_bytes(const device::Device& device) {
  if (device.kind() != device::DeviceKind::cuda) return monitor::peak_resident_bytes();
  if (plan::shares_process()) return std::nullopt;
  return monitor::Nvml().own_bytes(device.pci_bus_id());
}

void open_card_counters() {
  if (plan::shares_process()) return;
  static const auto* const open = new monitor::Nvml;  // never closed: closing is slow, and the process ends anyway
  static_cast<void>(open);
}

void reset_peak_resident() { std::ofstream("/proc/self/clear_refs") << "5"; }

double CpuClock::thread_seconds() { return clock_seconds(CLOCK_THREAD_CPUTIME_ID); }
double CpuClock::process_seconds() { return clock_seconds(CLOCK_PROCESS_CPUTIME_ID); }

double CpuClock::machine_seconds() {
  std::ifstream stat("/proc/stat");
  std::string name;
  double user = 0, nice = 0, system = 0, idle = 0, wait = 0, irq = 0, soft = 0, steal = 0;
  if (!(stat >> name >> user >> nice >> system >> idle >> wait >> irq >> soft >> steal)) return -1;
  return (user + nice + system + irq + soft + steal) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

double CpuClock::thread_run_delay() {
  std::ifstream file("/proc/thread-self/schedstat");
  double running = 0, waiting = 0;
  return file >> running >> waiting ? waiting * 1e-9 : -1;
}

int64_t CpuClock::major_faults() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_majflt;
}

}  // namespace brim::engine
